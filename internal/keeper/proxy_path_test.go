package keeper

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestGuestRequestPaths: what only the keeper says cannot be spelled otherwise.
func TestGuestRequestPaths(t *testing.T) {
	for _, tt := range []struct {
		path string
		want sandbox.Kind
	}{
		{"/v1/ping", ""},
		{"/v1/processes/abc/output", ""},
		{"/v1/hello", sandbox.Denied},
		{"/v1/hello/", sandbox.Invalid},
		{"/v1/%68ello", sandbox.Invalid},
		{"/v1//hello", sandbox.Invalid},
		{"/v1/./hello", sandbox.Invalid},
		{"/v1/x/../hello", sandbox.Invalid},
		{"/v1/quiesce", sandbox.Denied},
		{"/v1/x/../../quiesce", sandbox.Invalid},
		{"/v1/processes/a%2fb", sandbox.Invalid},
	} {
		_, err := guestRequest(httptest.NewRequest(http.MethodGet, "http://keeper/", nil), 1, tt.path)
		if got := sandbox.KindOf(err); got != tt.want {
			t.Errorf("%s: %q (%v), want %q", tt.path, got, err, tt.want)
		}
	}
}
