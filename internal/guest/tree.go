package guest

import (
	"context"
	"strconv"
	"strings"
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

// forest makes trees: one cgroup each where PID 1 could mount a hierarchy, else
// by walking /proc.
type forest struct {
	dir     int   // the cgroup that holds those of all trees; 0: none
	limited int64 // processes that the limit of all trees was set to last
	unified bool  // it is of cgroup v2: one limit holds all trees, and a tree is killed by one write
}

// openForest mounts the cgroups of the sandbox at dir. Behind gVisor either
// version mounts inside; version 2 is tried first, because gVisor's version 1
// charges a fork to the pids controller in one case out of as many as there
// are hierarchies, and does not charge parents.
func openForest(dir string) (forest, bool) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if unix.Mount("none", dir, "cgroup2", flags, "") == nil {
		if f, ok := openUnified(dir); ok {
			return f, true
		}
		unix.Unmount(dir, unix.MNT_DETACH)
	}
	if unix.Mount("none", dir, "cgroup", flags, "pids") != nil {
		return forest{}, false
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return forest{dir: fd}, err == nil
}

// The children of a v2 hierarchy's root: for the guest itself, since only a
// cgroup without processes may hand controllers on, and for all trees.
const (
	guestGroup = "guest"
	treesGroup = "trees"
)

func openUnified(dir string) (forest, bool) {
	root, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return forest{}, false
	}
	defer unix.Close(root)
	if !strings.Contains(" "+strings.TrimSpace(readControl(root, "cgroup.controllers"))+" ", " pids ") {
		return forest{}, false
	}
	self := strconv.Itoa(unix.Getpid())
	if unix.Mkdirat(root, guestGroup, 0o700) != nil {
		return forest{}, false
	}
	if writeControl(root, guestGroup+"/cgroup.procs", self) == nil &&
		writeControl(root, "cgroup.subtree_control", "+pids") == nil && unix.Mkdirat(root, treesGroup, 0o700) == nil {
		fd, err := unix.Openat(root, treesGroup, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return forest{dir: fd, unified: true}, true
		}
	}
	writeControl(root, "cgroup.procs", self)
	unix.Unlinkat(root, guestGroup, unix.AT_REMOVEDIR)
	unix.Unlinkat(root, treesGroup, unix.AT_REMOVEDIR)
	return forest{}, false
}

// limit bounds the processes of all trees together, where that can be.
func (f *forest) limit(processes int64) {
	if f.unified && processes > 0 && processes != f.limited &&
		writeControl(f.dir, "pids.max", strconv.FormatInt(processes, 10)) == nil {
		f.limited = processes
	}
}

// refused returns how many forks the limit of all trees has refused.
func (f *forest) refused() int64 {
	if !f.unified {
		return 0
	}
	for line := range strings.Lines(readControl(f.dir, "pids.events")) {
		if v, ok := strings.CutPrefix(line, "max "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

func writeControl(dir int, name, value string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

// readControl returns a control file, empty when that cannot be.
func readControl(dir int, name string) string {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	n, _ := unix.Read(fd, buf)
	return string(buf[:max(n, 0)])
}

// How often a tree that is being killed is looked at again when not as many
// children as were killed have been reaped meanwhile.
const (
	killPoll    = 5 * time.Millisecond
	maxKillPoll = 160 * time.Millisecond
)

// errStuck is returned by kill when the context ends first.
func errStuck(left int) error {
	return sandbox.Errorf(sandbox.DeadlineExceeded, "processes of the tree have not ended yet: %d or more", left)
}

// cgroupTree is one cgroup.
type cgroupTree struct {
	forest *forest
	name   string
	reaper *reaper
	gone   atomic.Bool
	full   atomic.Bool // the tree's own limit of processes has been seen reached
}

// plant makes a cgroup, for at most max processes where the forest as a whole
// has no limit, and returns it with its open cgroup.procs.
func (f *forest) plant(name string, max int64, r *reaper) (*cgroupTree, int, error) {
	if err := unix.Mkdirat(f.dir, name, 0o700); err != nil {
		return nil, -1, err
	}
	t := &cgroupTree{forest: f, name: name, reaper: r}
	if max > 0 && !f.unified {
		if err := writeControl(f.dir, name+"/pids.max", strconv.FormatInt(max, 10)); err != nil {
			t.empty()
			return nil, -1, err
		}
	}
	procs, err := unix.Openat(f.dir, name+"/cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.empty()
		return nil, -1, err
	}
	return t, procs, nil
}

func (t *cgroupTree) pids() []int {
	var out []int
	for f := range strings.FieldsSeq(readControl(t.forest.dir, t.name+"/cgroup.procs")) {
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
	if t.forest.unified && writeControl(t.forest.dir, t.name+"/cgroup.kill", "1") == nil {
		return awaitEmpty(ctx, t.reaper, t.empty)
	}
	writeControl(t.forest.dir, t.name+"/pids.max", "0") // no more forks
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
	if t.gone.Load() {
		return true
	}
	err := unix.Unlinkat(t.forest.dir, t.name, unix.AT_REMOVEDIR)
	if err != nil && err != unix.ENOENT {
		return false
	}
	t.gone.Store(true)
	return true
}

// awaitEmpty waits for the end of what has been killed.
func awaitEmpty(ctx context.Context, r *reaper, done func() bool) error {
	timer := time.NewTimer(killPoll)
	defer timer.Stop()
	for pause := killPoll; ; pause = min(pause*2, maxKillPoll) {
		ends := r.ends()
		if done() {
			return nil
		}
		timer.Reset(pause)
		if r.await(ctx, ends+1, timer.C) != nil {
			return errStuck(1)
		}
	}
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
