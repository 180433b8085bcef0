package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// gone waits until a sandbox is dead and returns its record.
func gone(t *testing.T, e *testenv.Env, ref string) sandbox.Sandbox {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		sb := record(t, e, ref)
		if sb.State == sandbox.Dead {
			return sb
		}
		if time.Now().After(end) {
			t.Fatalf("the sandbox is %s: %+v", sb.State, sb)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// detached runs a command with run -d and returns the sandbox's ID.
func detached(t *testing.T, e *testenv.Env, args ...string) string {
	t.Helper()
	r := want(t, e.Belljar(append([]string{"run", "-d"}, args...)...), 0)
	id := strings.TrimSpace(r.Stdout)
	if _, err := sandbox.ParseID(id); err != nil {
		t.Fatalf("run -d printed %q", r.Stdout)
	}
	return id
}

// TestAutoRemove: a detached sandbox with --rm goes when its command has ended
// or its time is over, and what it was is told afterwards.
func TestAutoRemove(t *testing.T) {
	e := setup(t)
	for _, tt := range []struct {
		name, reason, exit string
		args               []string
	}{
		{"exit code", sandbox.EndFinished, "3", []string{"--rm", "--", "sh", "-c", "echo said; exit 3"}},
		{"leaves a child", sandbox.EndFinished, "0", []string{"--rm", "--", "sh", "-c", "setsid sleep 7101 & exit 0"}},
		{"signal", sandbox.EndFinished, "143", []string{"--rm", "--", "sh", "-c", "kill -TERM $$"}},
		{"timeout", sandbox.EndTimeout, "124", []string{"--rm", "--timeout", "2s", "--", "sleep", "60"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := detached(t, e, tt.args...)
			if r := want(t, e.Belljar("wait", id), 0); r.Stdout != tt.exit+"\n" {
				t.Errorf("wait: %q, want %q", r.Stdout, tt.exit)
			}
			sb := gone(t, e, id)
			if sb.EndReason != tt.reason || !sb.AutoRemove || sb.Command == nil || sb.Command.Exit == nil {
				t.Errorf("inspect: %+v", sb)
			}
			if l := want(t, e.Belljar("ls"), 0); strings.Contains(l.Stdout, id) {
				t.Errorf("it is still listed: %s", l.Stdout)
			}
			contains(t, want(t, e.Belljar("ls", "-a"), 0).Stdout, id, tt.exit)
		})
	}
	nothingBut(t, e, "")

	r := e.Belljar("run", "-d", "--rm", "--", "no-such-program")
	if r.Code != 127 || r.Stdout != "" {
		t.Errorf("a command that does not exist: %+v", r)
	}
	want(t, e.Belljar("create", "--rm"), 2)
	if l := want(t, e.Belljar("ls", "-q"), 0); l.Stdout != "" {
		t.Errorf("left: %s", l.Stdout)
	}
}

// TestAutoRemoveOutlivesTheDaemon: the daemon is killed while the command runs,
// which goes on or ends meanwhile; the next daemon removes the sandbox and
// knows the exit code.
func TestAutoRemoveOutlivesTheDaemon(t *testing.T) {
	for name, ends := range map[string]bool{"ends later": false, "ends meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			dir := filepath.Join(e.Home, "shared")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			end := func() {
				if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			line := "while ! [ -e /shared/go ]; do sleep 0.05; done; echo last words; touch /shared/done; exit 9"
			id := detached(t, e, "--rm", "-u", "root", "-v", dir+":/shared", "--", "sh", "-c", line)
			if err := syscall.Kill(daemonPID(t, e), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if ends {
				end()
				for deadline := time.Now().Add(20 * time.Second); ; {
					if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Fatal("the command did not end")
					}
					<-time.After(20 * time.Millisecond)
				}
			} else {
				if sb := record(t, e, id); sb.State != sandbox.Running || sb.Command.Exit != nil { // starts the next daemon
					t.Fatalf("the next daemon has %+v", sb)
				}
				end()
			}
			if r := want(t, e.Belljar("wait", id), 0); r.Stdout != "9\n" {
				t.Errorf("wait: %q", r.Stdout)
			}
			if sb := gone(t, e, id); sb.EndReason != sandbox.EndFinished {
				t.Errorf("it ended: %s, %s", sb.EndReason, sb.EndMessage)
			}
			if r := want(t, e.Belljar("logs", id), 0); r.Stdout != "last words\n" {
				t.Errorf("logs: %q", r.Stdout)
			}
		})
	}
}

// TestExitOfADetachedCommand: inspect, ls, logs and wait tell how the command
// of a sandbox that stays has ended.
func TestExitOfADetachedCommand(t *testing.T) {
	e := setup(t)
	id := detached(t, e, "--name", "work", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
	r := want(t, e.Belljar("logs", "-f", "work"), 0)
	if r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("logs -f: %+v", r)
	}
	if r := want(t, e.Belljar("wait", "work"), 0); r.Stdout != "3\n" {
		t.Errorf("wait: %q", r.Stdout)
	}
	sb := record(t, e, id)
	if sb.State != sandbox.Running || sb.Command.Exit == nil || sb.Command.Exit.Code != 3 || sb.Command.Argv[0] != "sh" {
		t.Errorf("inspect: %+v", sb)
	}
	contains(t, want(t, e.Belljar("ls"), 0).Stdout, "COMMAND", "EXIT", "running", "3")
	contains(t, want(t, e.Belljar("inspect", "-o", "table", "work"), 0).Stdout, "exit ", "3")

	p := strings.TrimSpace(want(t, e.Belljar("exec", "-d", "work", "--", "sh", "-c", "exit 4"), 0).Stdout)
	if r := want(t, e.Belljar("wait", "--process", p, "work"), 0); r.Stdout != "4\n" {
		t.Errorf("wait --process: %q", r.Stdout)
	}
	var waited []struct{ Status int }
	decode(t, want(t, e.Belljar("wait", "-o", "json", "work"), 0).Stdout, &waited)
	if len(waited) != 1 || waited[0].Status != 3 {
		t.Errorf("wait -o json: %+v", waited)
	}

	sleeper := detached(t, e, "--", "sleep", "7102")
	want(t, e.Belljar("kill", sleeper), 0)
	if r := want(t, e.Belljar("wait", sleeper), 0); r.Stdout != "137\n" {
		t.Errorf("wait for one that was killed: %q", r.Stdout)
	}
	if r := want(t, e.Belljar("wait", "--process", record(t, e, sleeper).Command.Process, sleeper), 0); r.Stdout != "137\n" {
		t.Errorf("wait --process in one that was killed: %q", r.Stdout)
	}
}
