package wire

import (
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestStatus(t *testing.T) {
	for _, k := range sandbox.Kinds() {
		if got := Status(k); got < 400 || got == 500 && k != sandbox.Internal {
			t.Errorf("%s has the status %d", k, got)
		}
	}
	if got := Status("of a guest's making"); got != 500 {
		t.Errorf("an unknown kind: got %d, want 500", got)
	}
}
