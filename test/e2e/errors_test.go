package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestErrorsForPrograms: under -o json and -o yaml what goes wrong is one
// object on standard error; the exit code is the same as without.
func TestErrorsForPrograms(t *testing.T) {
	e := setup(t)
	create(t, e, "work")
	for _, tt := range []struct {
		line  string
		code  int
		kind  sandbox.Kind
		field string
		hint  bool
	}{
		{"inspect nobody", 125, sandbox.NotFound, "sandbox", true},
		{"ls --bogus", 2, sandbox.Invalid, "", true},
		{"run", 2, sandbox.Invalid, "", true},
		{"run --memory 1k -- true", 2, sandbox.Invalid, "", true},
		{"run --template none -- true", 125, sandbox.NotFound, "template", true},
		{"exec work -- no-such-program", 127, sandbox.NotFound, "argv[0]", true},
		{"exec work -- /etc/passwd", 126, sandbox.Denied, "argv[0]", true},
		{"exec work -- /tmp", 126, sandbox.Denied, "argv[0]", true},
		{"exec --timeout 1s work -- sleep 60", 124, sandbox.DeadlineExceeded, "", true},
		{"exec -w /nowhere work -- true", 125, sandbox.Invalid, "cwd", true},
		{"wait nobody", 125, sandbox.NotFound, "sandbox", true},
		{"create --name work", 125, sandbox.AlreadyExists, "name", true},
	} {
		t.Run(tt.line, func(t *testing.T) {
			for format, parse := range map[string]func([]byte, any) error{
				"json": json.Unmarshal,
				"yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
			} {
				args := strings.Fields(tt.line)
				args = append([]string{args[0], "-o", format}, args[1:]...)
				r := want(t, e.Belljar(args...), tt.code)
				var got struct{ Error *sandbox.Error }
				if err := parse([]byte(r.Stderr), &got); err != nil || got.Error == nil {
					t.Fatalf("-o %s: %v: %q", format, err, r.Stderr)
				}
				x := got.Error
				if x.Kind != tt.kind || x.Field != tt.field || x.Message == "" || tt.hint != (x.Hint != "") {
					t.Errorf("-o %s: %q", format, r.Stderr)
				}
				if format == "json" && strings.Count(r.Stderr, "\n") != 1 {
					t.Errorf("not one line: %q", r.Stderr)
				}
			}
		})
	}
}

// TestEndOfProcessOne: a command that ends process 1 is told of in a sentence,
// by run and by exec, and the exit code is ours.
func TestEndOfProcessOne(t *testing.T) {
	e := setup(t)
	const line = "kill -9 1; kill -9 -1; sleep 60"
	create(t, e, "work", "-u", "root")
	for name, args := range map[string][]string{
		"run":  {"run", "-u", "root", "--", "sh", "-c", line},
		"exec": {"exec", "work", "--", "sh", "-c", line},
	} {
		t.Run(name, func(t *testing.T) {
			r := want(t, e.Belljar(args...), 125)
			contains(t, r.Stderr, "and the sandbox with it", "hint: does the command end process 1")
		})
	}
	sb := gone(t, e, "work")
	if sb.EndReason != sandbox.EndExited || sb.EndMessage == "" {
		t.Errorf("inspect: %s, %q", sb.EndReason, sb.EndMessage)
	}
	r := want(t, e.Belljar("exec", "work", "--", "true"), 125)
	contains(t, r.Stderr, "the first process inside ended")
	r = want(t, e.Belljar("stats", "work"), 125)
	contains(t, r.Stderr, "the sandbox is dead", "hint: it ended (exited): "+sb.EndMessage)
}
