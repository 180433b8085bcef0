package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/manager"
)

const counts = `exec ` + python + ` -c '
import os, time
secret = os.urandom(4).hex()
open("/tmp/secret", "w").write(secret)
while True:
    time.sleep(1)
'`

// TestStartCommand: every sandbox of a template with a start command begins where
// that was ready, once for each size, and with an identity of its own.
func TestStartCommand(t *testing.T) {
	needPython(t)
	e := setup(t)
	pythonTemplate(t, e)
	want(t, e.Belljar("template", "set", "py", "--start-command", counts, "--ready-command", "cat /tmp/secret"), 0)
	secret := func(name string, flags ...string) string {
		b := create(t, e, name, append([]string{"--template", "py"}, flags...)...)
		out := want(t, b.exec("cat", "/tmp/secret", "/proc/sys/kernel/hostname"), 0).Stdout
		if !strings.Contains(out, name) {
			t.Errorf("%s: its host name is not in %q", name, out)
		}
		return out[:8]
	}
	a, b, large := secret("aa"), secret("bb"), secret("cc", "--memory", "512m")
	if a != b || a == large {
		t.Errorf("got %s, %s and, with other limits, %s: want one start for each size", a, b, large)
	}
	if got := want(t, e.Belljar("run", "--template", "py", "--", "cat", "/tmp/secret"), 0).Stdout; got != a {
		t.Errorf("run: got %q, want %q", got, a)
	}
	prepared, err := os.ReadDir(filepath.Join(e.State, "prepared"))
	if err != nil || len(prepared) != 2 {
		t.Errorf("prepared: %v, %v, want two", prepared, err)
	}
	if out := want(t, e.Belljar("ls", "-o", "json"), 0).Stdout; strings.Contains(out, "belljar.preparing") {
		t.Error("the sandbox in which a template was started is still there")
	}
	want(t, e.Belljar("template", "set", "py", "--start-command", "echo oops >&2; exit 3", "--ready-command", "false"), 0)
	contains(t, want(t, e.Belljar("create", "--template", "py"), 125).Stderr, "ended with 3", "oops")
	want(t, e.Belljar("template", "set", "py"), 0)
	create(t, e, "plain", "--template", "py")
	want(t, e.Belljar("exec", "plain", "--", "cat", "/tmp/secret"), 1)
	contains(t, want(t, e.Belljar("template", "set", "py", "--start-command", "true"), 125).Stderr, "ready")
	contains(t, want(t, e.Belljar("template", "set", "host", "--start-command", "true", "--ready-command", "true"), 125).Stderr, "host")
}

// TestPreparedCrashPoints: a daemon that dies as it makes a template's image
// leaves nothing, and the next makes it.
func TestPreparedCrashPoints(t *testing.T) {
	needPython(t)
	for _, point := range []string{manager.CrashPreparedReady, manager.CrashPreparedSealed} {
		t.Run(point, func(t *testing.T) {
			e := setup(t)
			pythonTemplate(t, e)
			want(t, e.Belljar("template", "set", "py", "--start-command", counts, "--ready-command", "cat /tmp/secret"), 0)
			want(t, e.Belljar("ls"), 0)
			crashDoing(t, e, point, "create", "--template", "py", "--name", "work")
			create(t, e, "work", "--template", "py")
			prepared, err := os.ReadDir(filepath.Join(e.State, "prepared"))
			if err != nil || len(prepared) != 1 {
				t.Errorf("prepared: %v, %v, want one", prepared, err)
			}
			if out := want(t, e.Belljar("ls"), 0).Stdout; strings.Count(out, "\n") != 2 {
				t.Errorf("there are others than the one that was made:\n%s", out)
			}
		})
	}
}
