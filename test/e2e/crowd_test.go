package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// TestTwentyRunsAtOnce: twenty runs at once, a daemon starting among them and
// half of the runs killed with -9: nobody reaps another's sandbox and nothing
// is left.
func TestTwentyRunsAtOnce(t *testing.T) {
	e := setup(t)
	const n = 20
	type one struct {
		cmd      *exec.Cmd
		out, err bytes.Buffer
	}
	runs := make([]*one, n)
	for i := range runs {
		r := &one{cmd: e.Command("run", "--", "sh", "-c", "echo begin; sleep 3; echo end "+itoa(i))}
		r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		runs[i] = r
	}
	b := create(t, e, "beside")
	for i := 0; i < n; i += 2 {
		runs[i].cmd.Process.Kill()
	}
	for i, r := range runs {
		err := r.cmd.Wait()
		if i%2 == 0 {
			continue
		}
		if err != nil || r.out.String() != "begin\nend "+itoa(i)+"\n" {
			t.Errorf("run %d: %v, %q, %s", i, err, r.out.String(), clip(r.err.String()))
		}
	}
	want(t, b.exec("true"), 0)
	e.Stop() // and nothing is left: neither keepers nor processes
	wantGone(t, e)
}

// wantGone fails when a process of the installation is left.
func wantGone(t testing.TB, e *testenv.Env) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		out, _ := exec.Command("pgrep", "-f", "-a", filepath.Dir(e.Run)).Output() // none is an exit code of 1
		if len(out) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("processes are left:\n%s", out)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// TestFiftyCreatesAtOnce: all succeed, or fail clean with an error that says
// that trying again helps.
func TestFiftyCreatesAtOnce(t *testing.T) {
	e := setup(t)
	const n = 50
	results := make([]testenv.Result, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i] = e.Belljar("create", "--memory", "128m", "--name", "box"+itoa(i)) })
	}
	wg.Wait()
	made := 0
	for i, r := range results {
		switch {
		case r.Code == 0:
			made++
		case r.Code != 125 || !strings.Contains(r.Stderr, "again"):
			t.Errorf("create %d: %d, %s", i, r.Code, r.Stderr)
		}
	}
	t.Logf("%d of %d were made", made, n)
	var list []json.RawMessage
	decode(t, want(t, e.Belljar("ls", "-o", "json"), 0).Stdout, &list)
	if len(list) != made {
		t.Errorf("%d sandboxes are listed, %d were made", len(list), made)
	}
	want(t, e.Belljar("kill", "--all"), 0)
	decode(t, want(t, e.Belljar("ls", "-o", "json"), 0).Stdout, &list)
	if len(list) != 0 {
		t.Errorf("%d sandboxes are left", len(list))
	}
}

// TestKilledRunLeavesNothing: kill -9 of belljar run at many moments.
func TestKilledRunLeavesNothing(t *testing.T) {
	e := setup(t)
	for _, after := range []time.Duration{0, 5, 20, 50, 100, 150, 200, 300, 500} {
		cmd := e.Command("run", "--", "sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(after * time.Millisecond)
		cmd.Process.Signal(syscall.SIGKILL)
		cmd.Wait()
	}
	wantGone(t, e)
	// One that was killed before it had a keeper leaves an empty directory to
	// the next run.
	want(t, e.Belljar("run", "--", "true"), 0)
	// What never became a keeper's begins with a dot, and goes after a minute.
	if names, err := filepath.Glob(filepath.Join(e.Run, "keepers", "[^.]*")); err != nil || len(names) > 0 {
		t.Errorf("keepers: %v, %v", names, err)
	}
}

// TestInterruptedWhileStarting: Ctrl-C before the command runs ends at once,
// with 130 and nothing left.
func TestInterruptedWhileStarting(t *testing.T) {
	e := setup(t)
	for _, after := range []time.Duration{1, 30, 80} {
		cmd := e.Command("run", "--", "sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(after * time.Millisecond)
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 && code != -1 { // -1: before we had a handler
			t.Errorf("after %v ms: exit code %d, want 130", int64(after), code)
		}
	}
	wantGone(t, e)
}
