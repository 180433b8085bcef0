package guest

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Where there is no cgroup to put a tree in, its processes are found in /proc:
// by parent, and, once a parent has died and the guest has inherited the
// child, by a mark that fork and exec hand down. The mark is the soft limit of
// RLIMIT_MSGQUEUE, lowered by the number of the tree: no program asks for it,
// and unlike an environment variable it shows nothing of ours. A program that
// raises it again and leaves its parent escapes; so this is the second choice.

// markBase and markStep spread the marks: base - n*step, n from 1 on.
const (
	markBase = 819200
	markStep = 8
	markMax  = markBase/markStep - 1
)

// procTree is a tree that is found by walking /proc.
type procTree struct {
	root   atomic.Int64 // pid, 0 once it has been reaped
	mark   uint64
	reaper *reaper
}

func markLimit(mark uint64) rlimit {
	var now unix.Rlimit
	unix.Getrlimit(rlimitMsgqueue, &now)
	return rlimit{rlimitMsgqueue, unix.Rlimit{Cur: min(mark, now.Max), Max: now.Max}}
}

const rlimitMsgqueue = 12

func (t *procTree) kill(ctx context.Context) error {
	return killAll(ctx, t.reaper, t.pids, t.empty)
}

func (t *procTree) signal(sig unix.Signal) {
	for _, pid := range t.pids() {
		unix.Kill(pid, sig)
	}
}

func (t *procTree) rootEnded() { t.root.Store(0) }

func (t *procTree) empty() bool { return len(t.pids()) == 0 }

// pids lists the live processes of the tree.
func (t *procTree) pids() []int {
	parents := map[int]int{}
	zombie := map[int]bool{}
	names, err := readNames("/proc")
	if err != nil {
		return nil
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if ppid, state := parentOf(pid); ppid >= 0 {
			parents[pid] = ppid
			zombie[pid] = state == 'Z' || state == 'X'
		}
	}
	self := os.Getpid()
	var out []int
	for pid, ppid := range parents {
		if zombie[pid] || pid == self {
			continue
		}
		if t.descends(pid, parents) || ppid == self && int64(pid) != t.root.Load() && t.marked(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// descends tells whether pid is the root or has it, or a marked orphan, among
// its ancestors.
func (t *procTree) descends(pid int, parents map[int]int) bool {
	self := os.Getpid()
	for range len(parents) + 1 {
		if int64(pid) == t.root.Load() {
			return true
		}
		ppid, ok := parents[pid]
		if !ok || ppid <= 1 && ppid != self {
			return false
		}
		if ppid == self {
			return t.marked(pid)
		}
		pid = ppid
	}
	return false
}

func (t *procTree) marked(pid int) bool {
	// prlimit would need a privilege that root inside may not have.
	b, err := readSmall("/proc/"+strconv.Itoa(pid)+"/limits", 64<<10)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Max msgqueue size")); ok {
			f := bytes.Fields(rest)
			return len(f) > 0 && string(f[0]) == strconv.FormatUint(t.mark, 10)
		}
	}
	return false
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// parentOf returns parent and state of a process, -1 when it is gone.
func parentOf(pid int) (ppid int, state byte) {
	b, err := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", 64<<10)
	if err != nil {
		return -1, 0
	}
	// The name in parentheses may hold anything, parentheses included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return -1, 0
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 2 || len(f[0]) != 1 {
		return -1, 0
	}
	ppid, err = strconv.Atoi(string(f[1]))
	if err != nil {
		return -1, 0
	}
	return ppid, f[0][0]
}
