package reply

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestError(t *testing.T) {
	if Error(nil) != nil {
		t.Error("no error is an error")
	}
	for _, tt := range []struct {
		err    error
		code   connect.Code
		status int
	}{
		{sandbox.Errorf(sandbox.Invalid, "x"), connect.CodeInvalidArgument, 400},
		{sandbox.Errorf(sandbox.Invalid, "x").WithField("user", "u"), connect.CodeUnauthenticated, 401},
		{sandbox.Errorf(sandbox.NotFound, "x"), connect.CodeNotFound, 404},
		{sandbox.Errorf(sandbox.AlreadyExists, "x"), connect.CodeAlreadyExists, 409},
		{sandbox.Errorf(sandbox.Denied, "x"), connect.CodePermissionDenied, 403},
		{sandbox.Errorf(sandbox.ResourceExhausted, "x"), connect.CodeResourceExhausted, 429},
		{sandbox.Errorf(sandbox.Unavailable, "x"), connect.CodeUnavailable, 503},
		{errors.New("a cause that nobody is told"), connect.CodeInternal, 500},
	} {
		err := Error(tt.err)
		if got := connect.CodeOf(err); got != tt.code {
			t.Errorf("%v: got %v, want %v", tt.err, got, tt.code)
		}
		if got := Status(tt.err); got != tt.status {
			t.Errorf("%v: got %d, want %d", tt.err, got, tt.status)
		}
		if strings.Contains(err.Error(), "cause that") {
			t.Errorf("%v tells its cause", err)
		}
		if Error(err) != err {
			t.Errorf("%v is wrapped again", err)
		}
	}
	if got := http.StatusText(Status(sandbox.Errorf(sandbox.Unsupported, "x"))); got == "" {
		t.Error("a status that is none")
	}
}

func TestParseUser(t *testing.T) {
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, tt := range []struct {
		header, want string
		bad          bool
	}{
		{"", "", false}, {basic("root:"), "root", false}, {basic("user:pass:word"), "user", false}, {basic(":"), "", false},
		{"basic " + basic("x:")[6:], "x", false},
		{basic("root"), "", true}, {"Bearer x", "", true}, {"Basic !", "", true}, {"Basic", "", true},
		{basic("a\x00b:"), "", true}, {basic(strings.Repeat("x", 257) + ":"), "", true},
	} {
		got, err := ParseUser(tt.header)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q: got %q, %v", tt.header, got, err)
		}
	}
}

func FuzzParseUser(f *testing.F) {
	f.Add("Basic cm9vdDo=")
	f.Fuzz(func(t *testing.T, header string) {
		name, err := ParseUser(header)
		if err == nil && (len(name) > maxUser || strings.ContainsAny(name, ":\x00")) {
			t.Errorf("%q is taken for the user %q", header, name)
		}
	})
}
