package cli

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestBetween(t *testing.T) {
	cmd := &cobra.Command{Use: "x"}
	for _, tc := range []struct {
		least, most, n int
		want           string
	}{
		{0, 0, 0, ""}, {1, 1, 1, ""}, {1, -1, 9, ""}, {2, 2, 2, ""},
		{0, 0, 2, "`x` takes no arguments, not 2"},
		{1, 1, 0, "`x` takes 1 argument, not 0"},
		{1, -1, 0, "`x` takes at least 1 argument, not 0"},
		{2, -1, 1, "`x` takes at least 2 arguments, not 1"},
		{2, 2, 3, "`x` takes 2 arguments, not 3"},
		{1, 2, 3, "`x` takes 1 to 2 arguments, not 3"},
	} {
		err := between(tc.least, tc.most)(cmd, make([]string, tc.n))
		var usage *usageError
		switch {
		case tc.want == "" && err == nil:
		case err == nil || err.Error() != tc.want || !errors.As(err, &usage):
			t.Errorf("between(%d, %d) of %d: got %v, want %q", tc.least, tc.most, tc.n, err, tc.want)
		}
	}
}
