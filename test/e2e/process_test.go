package e2e

import (
	"strings"
	"testing"
	"time"
)

// left counts the sleeps of a marked length that run in the sandbox.
func (b *box) left(seconds string) string {
	b.t.Helper()
	r := want(b.t, b.sh(`n=0; for p in /proc/[0-9]*; do if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "^sleep `+seconds+` "; then n=$((n+1)); fi; done; echo $n`), 0)
	return strings.TrimSpace(r.Stdout)
}

// TestTimeoutKillsTheTree: children that have left the session or the process
// group die with the timeout of their exec, others' processes do not.
func TestTimeoutKillsTheTree(t *testing.T) {
	b := create(t, setup(t), "work")
	want(t, b.exec("-d", "--", "sleep", "7001"), 0)
	for name, line := range map[string]string{
		"setsid":         `setsid sleep 7002 & wait`,
		"double fork":    `(setsid sh -c 'sleep 7002 & exec sleep 7002' &) ; sleep 7002`,
		"ignores TERM":   `trap "" TERM HUP INT; sleep 7002; sleep 7002`,
		"stops itself":   `sleep 7002 & kill -STOP $$`,
		"holds stdout":   `sleep 7002 & setsid sleep 7002 & exec sleep 7002`,
		"many at once":   `i=0; while [ $i -lt 20 ]; do setsid sleep 7002 & i=$((i+1)); done; wait`,
		"forks for ever": `while :; do setsid sleep 7002 & sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			r := want(t, b.exec("--timeout", "1s", "--", "sh", "-c", line), 124)
			if r.Took > 10*time.Second {
				t.Errorf("it took %v", r.Took)
			}
			if n := b.left("7002"); n != "0" {
				t.Errorf("%s processes are left", n)
			}
		})
	}
	if n := b.left("7001"); n != "1" {
		t.Errorf("%s of the neighbour's processes live, want 1", n)
	}
}

// TestBackgroundChildHoldsStdout: a background child that holds the output
// open neither defeats a timeout nor keeps a finished command from returning.
func TestBackgroundChildHoldsStdout(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	for _, how := range [][]string{{"run"}, {"exec", b.name}} {
		r := want(t, e.Belljar(append(how, "--", "sh", "-c", "sleep 7003 & echo done")...), 0)
		if r.Stdout != "done\n" || r.Took > 20*time.Second {
			t.Errorf("%v: %q after %v", how, r.Stdout, r.Took)
		}
	}
	want(t, e.Belljar("run", "--timeout", "1s", "--", "sh", "-c", "sleep 7003 & wait"), 124)
	if n := b.left("7003"); n != "0" {
		t.Errorf("%s processes are left", n)
	}
}

// TestDetached: a command that is started with -d goes on, its output is kept,
// and it ends with its sandbox.
func TestDetached(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	r := want(t, b.exec("-d", "--", "sh", "-c", "echo to stdout; echo to stderr >&2; exit 5"), 0)
	id := strings.TrimSpace(r.Stdout)
	logs := want(t, e.Belljar("logs", "-f", "--process", id, b.name), 0)
	if logs.Stdout != "to stdout\n" || !strings.HasPrefix(logs.Stderr, "to stderr\n") {
		t.Errorf("logs: %+v", logs)
	}
	r = want(t, e.Belljar("run", "-d", "--", "sh", "-c", "echo started; sleep 7004"), 0)
	ref := strings.TrimSpace(r.Stdout)
	contains(t, e.Belljar("ls").Stdout, ref)
	want(t, e.Belljar("kill", ref), 0)
	if l := e.Belljar("ls"); strings.Contains(l.Stdout, ref) {
		t.Errorf("the sandbox is still listed: %s", l.Stdout)
	}
	want(t, e.Belljar("kill", ref), 0) // idempotent
}

// TestSandboxTimeout: a sandbox ends at its timeout, whatever runs in it.
func TestSandboxTimeout(t *testing.T) {
	e := setup(t)
	b := create(t, e, "short", "--timeout", "3s")
	r := e.Belljar("exec", b.name, "--", "sleep", "60")
	if r.Code != 124 {
		t.Errorf("the exec in it ended with %d: %s", r.Code, r.Stderr)
	}
	var got []struct {
		Name      string
		State     string
		EndReason string `json:"end_reason"`
	}
	decode(t, want(t, e.Belljar("ls", "-a", "-o", "json"), 0).Stdout, &got)
	if len(got) != 1 || got[0].State != "dead" || got[0].EndReason != "timeout" {
		t.Errorf("ls: %+v", got)
	}
}
