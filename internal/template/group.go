package template

import (
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// group signals a program and those that it has started in its process group.
// A group is named by the number of its first process, which is nobody else's
// until that one has been waited for; later it may be. It is safe for
// concurrent use.
type group struct {
	mu   sync.Mutex
	cmd  *exec.Cmd // one that has been started
	over bool      // it is being waited for
}

// signal does nothing once the program has ended.
func (g *group) signal(sig unix.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return nil
	}
	return unix.Kill(-g.cmd.Process.Pid, sig)
}

// wait waits for the program's end, kills the rest of its group and returns
// how the program ended.
func (g *group) wait() error {
	for {
		// It stays a zombie, which keeps the number.
		err := unix.Waitid(unix.P_PID, g.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	g.mu.Lock()
	_ = unix.Kill(-g.cmd.Process.Pid, unix.SIGKILL) // usually nothing is left
	g.over = true
	g.mu.Unlock()
	return g.cmd.Wait()
}
