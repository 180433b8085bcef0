package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestDaemonCrashPoints has the daemon die, as by kill -9, at each of its crash
// points. The next daemon has the sandbox that lived, and of the one that was
// being made or killed nothing is left. BELLJAR_CRASH_ROUNDS sets the rounds
// per point.
func TestDaemonCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	e := setup(t)
	bystander := create(t, e, "bystander")
	id := record(t, e, "bystander").ID
	for _, point := range manager.CrashPoints() {
		t.Run(point, func(t *testing.T) {
			for range rounds {
				crashAt(t, e, point)
				if got := record(t, e, "bystander"); got.ID != id || got.State != sandbox.Running {
					t.Fatalf("the bystander: got %s, %s", got.ID, got.State)
				}
				want(t, bystander.sh("true"), 0)
				victims := settled(t, e, id)
				for _, v := range victims {
					if strings.HasPrefix(point, "create") && point != manager.CrashCreateRunning {
						t.Errorf("a sandbox that nobody was told of is %s", v.State)
					}
					want(t, e.Belljar("kill", string(v.ID)), 0)
				}
				nothingBut(t, e, id)
			}
		})
	}
}

// crashAt restarts the daemon so that it dies at point, and has it go there.
func crashAt(t *testing.T, e *testenv.Env, point string) {
	t.Helper()
	adopting := strings.HasPrefix(point, "adopt")
	if adopting { // something to adopt beside the bystander
		want(t, e.Belljar("create"), 0)
	}
	want(t, e.Belljar("daemon", "stop"), 0)
	d := e.Command("daemon", "run", "--crash-points")
	d.Env = append(d.Env, "BELLJAR_CRASH="+point)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Wait() }()
	var err error
	if adopting {
		err = <-ended
	} else {
		err = drive(e, point, ended)
	}
	if ws, ok := d.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon ended with %v, want it killed", err)
	}
}

// drive creates and kills, or has a sandbox go by itself, until the daemon has
// died.
func drive(e *testenv.Env, point string, ended chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Millisecond):
		}
		if _, err := os.Stat(filepath.Join(e.Run, "daemon.sock")); err != nil {
			continue
		}
		if point == manager.CrashCommandEnded {
			e.Belljar("run", "-d", "--rm", "--", "true") // fails when the daemon dies of it
			return <-ended
		}
		if r := e.Belljar("create", "--name", "victim"); r.Code == 0 {
			e.Belljar("kill", "victim") // fails when the daemon dies of it
		}
		return <-ended
	}
}

// record returns a record.
func record(t testing.TB, e *testenv.Env, name string) sandbox.Sandbox {
	t.Helper()
	r := want(t, e.Belljar("inspect", "-o", "json", name), 0)
	var one sandbox.Sandbox
	if err := json.Unmarshal([]byte(r.Stdout), &one); err != nil {
		var many []sandbox.Sandbox
		if err := json.Unmarshal([]byte(r.Stdout), &many); err != nil || len(many) != 1 {
			t.Fatalf("inspect: %v: %s", err, clip(r.Stdout))
		}
		one = many[0]
	}
	return one
}

// settled returns the sandboxes but one once each is running or dead.
func settled(t *testing.T, e *testenv.Env, but sandbox.ID) (out []sandbox.Sandbox) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		r := want(t, e.Belljar("ls", "-o", "json"), 0)
		var all []sandbox.Sandbox
		if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
			t.Fatalf("ls: %v: %s", err, clip(r.Stdout))
		}
		out = nil
		moving := false
		for _, sb := range all {
			moving = moving || sb.State != sandbox.Running
			if sb.ID != but {
				out = append(out, sb)
			}
		}
		if !moving {
			return out
		}
		if time.Now().After(end) {
			t.Fatalf("not settled: %s", clip(r.Stdout))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// nothingBut fails unless the one sandbox is all that the host holds: in
// keepers' directories and as processes.
func nothingBut(t *testing.T, e *testenv.Env, id sandbox.ID) {
	t.Helper()
	var left []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if left = held(e, id); len(left) == 0 {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Errorf("left on the host: %v", left)
}

func held(e *testenv.Env, but sandbox.ID) (out []string) {
	dirs, _ := filepath.Glob(filepath.Join(e.Run, "keepers", "*", "sandboxes", "*")) // the pattern is well formed
	for _, d := range dirs {
		if filepath.Base(d) != string(but) {
			out = append(out, d)
		}
	}
	// A process of a sandbox has its ID, and the keeper's directory, in its
	// arguments.
	b, _ := exec.Command("pgrep", "-af", e.Run+"/keepers/.*/sandboxes/").Output() // none is an exit code of 1
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, string(but)) && !strings.Contains(line, "pgrep") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// crashRounds is how often each crash point is passed: BELLJAR_CRASH_ROUNDS, or
// usual.
func crashRounds(t testing.TB, usual int) int {
	t.Helper()
	v := os.Getenv("BELLJAR_CRASH_ROUNDS")
	if v == "" {
		return usual
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
