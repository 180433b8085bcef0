package guest

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// A tree is a process begun by Start and all its descendants, those included
// that have left its session and whose parents have died.
type tree interface {
	// kill ends every process of the tree and returns when none is left.
	kill(ctx context.Context) error
	// signal sends sig to every process of the tree.
	signal(sig unix.Signal)
	// rootEnded tells that the process itself has been reaped.
	rootEnded()
	// empty reports that nothing is left, and gives back what the tree held if
	// so.
	empty() bool
}

// forest makes trees: by cgroup where PID 1 could mount a hierarchy, else by
// walking /proc.
type forest struct {
	dir int // of the hierarchy, 0: none
}

// How often a tree that is being killed is looked at again when not as many
// children as were killed have been reaped meanwhile.
const (
	killPoll    = 5 * time.Millisecond
	maxKillPoll = 160 * time.Millisecond
)

// errStuck is returned by kill when the context ends first.
func errStuck(left int) error {
	return sandbox.Errorf(sandbox.DeadlineExceeded, "%d processes of the tree have not ended yet", left)
}

// cgroupTree is one cgroup of a v1 hierarchy with the pids controller.
type cgroupTree struct {
	parent int
	name   string
	reaper *reaper

	full atomic.Bool // the limit of processes has been seen reached

	mu  sync.Mutex
	dir int // -1: removed
}

// newCgroup makes a cgroup for at most max processes and returns it with its
// open cgroup.procs.
func (f *forest) newCgroup(name string, max int64, r *reaper) (*cgroupTree, int, error) {
	if err := unix.Mkdirat(f.dir, name, 0o700); err != nil {
		return nil, -1, err
	}
	dir, err := unix.Openat(f.dir, name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	t := &cgroupTree{parent: f.dir, name: name, dir: dir, reaper: r}
	if max > 0 {
		if err := t.write("pids.max", strconv.FormatInt(max, 10)); err != nil {
			t.empty()
			return nil, -1, err
		}
	}
	procs, err := unix.Openat(dir, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.empty()
		return nil, -1, err
	}
	return t, procs, nil
}

func (t *cgroupTree) write(name, value string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd, err := unix.Openat(t.dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

// read returns a control file, empty when that cannot be.
func (t *cgroupTree) read(name string) string {
	t.mu.Lock()
	fd, err := unix.Openat(t.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	t.mu.Unlock()
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	n, _ := unix.Read(fd, buf)
	return string(buf[:max(n, 0)])
}

func (t *cgroupTree) pids() []int {
	var out []int
	for _, f := range strings.Fields(t.read("cgroup.procs")) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			out = append(out, pid)
		}
	}
	return out
}

func (t *cgroupTree) kill(ctx context.Context) error {
	if t.empty() {
		return nil
	}
	t.write("pids.max", "0") // no more forks
	return killAll(ctx, t.reaper, t.pids, t.empty)
}

func (t *cgroupTree) signal(sig unix.Signal) {
	for _, pid := range t.pids() {
		unix.Kill(pid, sig)
	}
}

func (t *cgroupTree) rootEnded() {}

// empty succeeds in removing the cgroup only when no process is in it: one
// call both asks and cleans up.
func (t *cgroupTree) empty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir < 0 {
		return true
	}
	err := unix.Unlinkat(t.parent, t.name, unix.AT_REMOVEDIR)
	if err != nil && err != unix.ENOENT {
		return false
	}
	unix.Close(t.dir)
	t.dir = -1
	return true
}

// killAll sends SIGKILL to what pids lists until done reports true. Amid a
// fork bomb a system call of the guest waits behind a thousand tasks, so it
// makes few: a whole process group at a time (a group never reaches beyond its
// session, nor a session beyond its tree), a few groups at first and more in
// every round, since most of what is listed dies with the first ones.
func killAll(ctx context.Context, r *reaper, pids func() []int, done func() bool) error {
	timer := time.NewTimer(killPoll)
	defer timer.Stop()
	for budget, pause := 8, killPoll; ; budget, pause = min(budget*4, 1<<20), min(pause*2, maxKillPoll) {
		ends := r.ends()
		left := pids()
		killGroups(left[:min(len(left), budget)])
		if done() {
			return nil
		}
		timer.Reset(pause)
		if err := r.await(ctx, ends+int64(max(len(left), 1)), timer.C); err != nil {
			return errStuck(len(left))
		}
		if done() {
			return nil
		}
	}
}

// killGroups kills the groups that pids are in.
func killGroups(pids []int) {
	own := unix.Getpgrp()
	killed := map[int]bool{}
	for _, pid := range pids {
		group, err := unix.Getpgid(pid)
		switch {
		case err != nil: // gone
		case group <= 1 || group == own:
			unix.Kill(pid, unix.SIGKILL)
		case !killed[group]:
			killed[group] = true
			unix.Kill(-group, unix.SIGKILL)
		}
	}
}
