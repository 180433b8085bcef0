package template

import (
	"bufio"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGroupEnds: what a program leaves in its group is killed while the program
// still has its number, and nothing is signalled afterwards.
func TestGroupEnds(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pinned)
	g := &group{cmd: cmd}
	if err := g.wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("wait: %v", err)
	}
	fds := []unix.PollFd{{Fd: int32(pinned), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 10_000); n != 1 {
		t.Errorf("its child lives on (%v)", err)
	}

	// Its number becomes another's group.
	other := exec.CommandContext(t.Context(), "sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Pid = other.Process.Pid
	if err := g.signal(unix.SIGTERM); err != nil {
		t.Error("signal:", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	if ws := other.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		t.Errorf("another group was signalled: %v", ws.Signal())
	}
}
