package e2e

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

// counted prints numbered lines on both streams, a few at a time.
const counted = `
import sys, time
for i in range(int(sys.argv[1])):
    print("line", i, "x" * 500)
    print("note", i, file=sys.stderr)
    if i % 50 == 0:
        sys.stdout.flush()
        time.sleep(0.05)
sys.exit(5)
`

// TestLogsFollowOverDaemonRestarts: the daemon is killed twice while logs -f
// follows two commands; every line comes once, and logs ends with them.
func TestLogsFollowOverDaemonRestarts(t *testing.T) {
	needPython(t)
	e := setup(t)
	const lines = 4000
	id := detached(t, e, "--", python, "-c", counted, itoa(lines))
	want(t, e.Belljar("exec", "-d", id, "--", "sh", "-c", "echo second; exit 1"), 0)
	cmd := e.Command("logs", "-f", id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	for range 2 {
		if _, err := io.CopyN(&stdout, out, 400<<10); err != nil {
			t.Fatal(err, stderr.String())
		}
		if err := syscall.Kill(daemonPID(t, e), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.Copy(&stdout, out); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v: %s", err, clip(stderr.String()))
	}
	var wantOut, wantErr strings.Builder
	for i := range lines {
		wantOut.WriteString("line " + itoa(i) + " " + strings.Repeat("x", 500) + "\n")
		wantErr.WriteString("note " + itoa(i) + "\n")
	}
	wantOut.WriteString("second\n")
	if stdout.String() != wantOut.String() {
		t.Errorf("standard output has %d bytes, want %d: ...%s", stdout.Len(), wantOut.Len(), clip(stdout.String()))
	}
	if stderr.String() != wantErr.String() {
		t.Errorf("standard error has %d bytes, want %d: %s", stderr.Len(), wantErr.Len(), clip(stderr.String()))
	}
	if r := want(t, e.Belljar("wait", id), 0); r.Stdout != "5\n" {
		t.Errorf("wait: %q", r.Stdout)
	}
}

// TestLogsFollowEndsWithTheSandbox: logs -f of a command that would run for
// ever ends when its sandbox is killed.
func TestLogsFollowEndsWithTheSandbox(t *testing.T) {
	e := setup(t)
	id := detached(t, e, "--", "sh", "-c", "echo begun; sleep 7201")
	cmd := e.Command("logs", "-f", id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	want(t, e.Belljar("kill", id), 0)
	stop := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer stop.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
}
