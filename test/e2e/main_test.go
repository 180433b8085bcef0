package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestMain(m *testing.M) {
	testenv.CatchSignals()
	code := m.Run()
	testenv.Cleanup()
	os.Exit(code)
}

// setup returns an installation on a host that has the gvisor boundary.
func setup(t testing.TB) *testenv.Env {
	t.Helper()
	testenv.NeedBoundary(t, sandbox.GVisor)
	return testenv.New(t)
}

// box is a sandbox in the daemon of a test.
type box struct {
	*testenv.Env
	t    testing.TB
	name string
}

// create makes a sandbox that lives until the test ends.
func create(t testing.TB, e *testenv.Env, name string, flags ...string) *box {
	t.Helper()
	args := append([]string{"create", "--name", name}, flags...)
	want(t, e.Belljar(args...), 0)
	return &box{e, t, name}
}

// exec runs a command in the sandbox; flags of exec come before "--".
func (b *box) exec(args ...string) testenv.Result {
	b.t.Helper()
	return b.Belljar(execArgs(b.name, args)...)
}

// execArgs puts the name where it belongs.
func execArgs(name string, args []string) []string {
	for i, a := range args {
		if a == "--" {
			return append(append(append([]string{"exec"}, args[:i]...), name), args[i:]...)
		}
	}
	return append([]string{"exec", name, "--"}, args...)
}

// sh runs a shell line in the sandbox.
func (b *box) sh(line string) testenv.Result {
	b.t.Helper()
	return b.exec("sh", "-c", line)
}

// want fails the test unless r ended with code.
func want(t testing.TB, r testenv.Result, code int) testenv.Result {
	t.Helper()
	if r.Code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.Code, code, clip(r.Stdout), clip(r.Stderr))
	}
	return r
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:1000] + " ... " + s[len(s)-1000:]
	}
	return s
}

// contains fails the test unless text holds every part.
func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in %q", p, clip(text))
		}
	}
}

// decode parses a JSON result.
func decode(t testing.TB, text string, out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatalf("the result is not JSON: %v\n%s", err, clip(text))
	}
}

// ended is the part of a result that most tests look at.
type ended struct {
	Sandbox sandbox.ID
	Exit    struct {
		sandbox.Exit
		Status int
	}
	Isolation sandbox.Isolation
	Limits    []sandbox.LimitStatus
	Hits      []sandbox.Event `json:"limit_events"`
	Stdout    output
	Stderr    output
	Timing    map[string]float64
	Timeline  []sandbox.Step
	Workspace []struct {
		Source   string
		Findings []struct{ Kind, Path, Target string }
	}
}

type output struct {
	Bytes, Lost, Omitted int64
	Encoding, Head, Tail string
	File, FileError      string
	FileBytes            int64 `json:"file_bytes"`
}
