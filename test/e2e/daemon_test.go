package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// daemonPID returns the process ID of the daemon that runs.
func daemonPID(t testing.TB, e *testenv.Env) int {
	t.Helper()
	var got struct {
		Running bool
		PID     int
	}
	decode(t, want(t, e.Belljar("daemon", "status", "-o", "json"), 0).Stdout, &got)
	if !got.Running || got.PID == 0 {
		t.Fatalf("daemon status: %+v", got)
	}
	return got.PID
}

// slowNoise prints MiB of bytes of which each depends on its place, a little
// at a time.
const slowNoise = `
import sys, hashlib, time
out = sys.stdout.buffer
for i in range(int(sys.argv[1])):
    out.write(hashlib.sha256(str(i).encode()).digest() * 32768)
    out.flush()
    time.sleep(float(sys.argv[2]))
sys.exit(7)
`

// TestDaemonRestartLosesNothing: the daemon is killed, or stopped, in the
// middle of an exec; output, input and exit code come through whole.
func TestDaemonRestartLosesNothing(t *testing.T) {
	needPython(t)
	for name, end := range map[string]func(t *testing.T, e *testenv.Env, pid int){
		"killed": func(t *testing.T, e *testenv.Env, pid int) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		"stopped": func(t *testing.T, e *testenv.Env, _ int) { want(t, e.Belljar("daemon", "stop"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			b := create(t, e, "work")
			const mib = 24
			h := sha256.New()
			cmd := e.Command("exec", b.name, "--", python, "-c", slowNoise, itoa(mib), "0.15")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			first := make([]byte, 5<<20)
			for range 2 { // twice: the second daemon is ended, too
				if _, err := io.ReadFull(out, first); err != nil {
					t.Fatal(err, stderr.String())
				}
				h.Write(first)
				end(t, e, daemonPID(t, e))
			}
			if _, err := io.Copy(h, out); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 7 {
				t.Errorf("exit code %d, want 7: %s", code, stderr.String())
			}
			if hex.EncodeToString(h.Sum(nil)) != noiseSum(mib) {
				t.Error("the output differs")
			}
			want(t, b.exec("echo", "alive"), 0)
		})
	}
}

// TestDaemonRestartInInput: input that is on its way when the daemon dies
// arrives whole.
func TestDaemonRestartInInput(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	const size = 48 << 20
	h := sha256.New()
	pr, pw := io.Pipe()
	cmd := e.Command("exec", "-i", b.name, "--", "sh", "-c", "sleep 1; sha256sum")
	cmd.Stdin = pr
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		pr.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends a write that nobody reads
		ended <- err
	}()
	source := io.TeeReader(&noise{3}, h)
	if _, err := io.CopyN(pw, source, size/2); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(daemonPID(t, e), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(pw, source, size/2); err != nil {
		t.Fatal(err)
	}
	pw.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(out.String())[0]; got != hex.EncodeToString(h.Sum(nil)) {
		t.Errorf("the input arrived with sum %s", got)
	}
}

// TestSandboxesOutliveTheDaemon: after a kill -9 of the daemon the next one
// has the sandboxes, their processes and what was logged.
func TestSandboxesOutliveTheDaemon(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	want(t, b.sh("echo kept > ~/file"), 0)
	id := strings.TrimSpace(want(t, b.exec("-d", "--", "sh", "-c", "echo before; sleep 3; echo after"), 0).Stdout)
	if err := syscall.Kill(daemonPID(t, e), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := want(t, b.sh("cat ~/file"), 0); r.Stdout != "kept\n" {
		t.Errorf("%q", r.Stdout)
	}
	if r := want(t, e.Belljar("logs", "-f", "--process", id, b.name), 0); r.Stdout != "before\nafter\n" {
		t.Errorf("logs: %q", r.Stdout)
	}
	want(t, e.Belljar("daemon", "stop"), 0)
	contains(t, want(t, e.Belljar("ls"), 0).Stdout, "work")
}

// TestKeeperDies: when a keeper is killed its sandboxes are dead, nothing of
// them is left, and new ones can be made.
func TestKeeperDies(t *testing.T) {
	e := setup(t)
	create(t, e, "doomed")
	engines := func() []string {
		out, _ := exec.Command("pgrep", "-f", e.Run+"/keepers/").Output() // none is an exit code of 1
		return strings.Fields(string(out))
	}
	for _, pid := range engines() {
		want(t, e.Finish(e.Program("sh", "-c", "kill -9 "+pid+" 2>/dev/null; true")), 0)
	}
	end := time.Now().Add(20 * time.Second)
	for {
		r := e.Belljar("ls", "-a")
		if strings.Contains(r.Stdout, "dead") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the sandbox is not dead: %s%s", r.Stdout, r.Stderr)
		}
		<-time.After(50 * time.Millisecond)
	}
	if r := e.Belljar("exec", "doomed", "--", "true"); r.Code == 0 {
		t.Error("an exec in it works")
	}
	b := create(t, e, "next")
	want(t, b.exec("true"), 0)
	if _, err := os.Stat(e.Run); err != nil {
		t.Fatal(err)
	}
}
