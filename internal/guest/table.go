package guest

import (
	"bytes"
	"cmp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// procTable holds the processes by ID.
type procTable struct {
	mu        sync.Mutex
	server    *Server
	byID      map[string]*process
	mark      uint64
	openFiles uint64
	processes uint64
}

func (t *procTable) init(s *Server) {
	t.server = s
	t.byID = map[string]*process{}
}

// reserve makes a place for a new process, or returns the one that an equal
// request began or is beginning.
func (t *procTable) reserve(id string, same []byte) (p *process, mine bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		if !bytes.Equal(p.same, same) {
			return nil, false, sandbox.Errorf(sandbox.Conflict, "another process has this ID").WithField("id", id)
		}
		return p, false, nil
	}
	p = &process{
		server: t.server, same: same,
		begun: make(chan struct{}), started: make(chan struct{}), gone: make(chan struct{}),
	}
	p.info.ID = id
	p.out.readers = map[*reader]struct{}{}
	t.byID[id] = p
	return p, true, nil
}

// settle ends the reservation.
func (t *procTable) settle(p *process, err error) {
	if err != nil {
		t.remove(p)
	}
	p.failed = err
	close(p.begun)
	t.trim()
}

func (t *procTable) remove(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[p.info.ID] == p {
		delete(t.byID, p.info.ID)
	}
}

// get returns a process that has begun, or nil.
func (t *procTable) get(id string) *process {
	t.mu.Lock()
	p := t.byID[id]
	t.mu.Unlock()
	if p == nil || !p.hasBegun() {
		return nil
	}
	return p
}

func (p *process) hasBegun() bool {
	select {
	case <-p.begun:
		return p.failed == nil
	default:
		return false
	}
}

// all returns the processes in the order of their start.
func (t *procTable) all() []*process {
	t.mu.Lock()
	out := make([]*process, 0, len(t.byID))
	for _, p := range t.byID {
		out = append(out, p)
	}
	t.mu.Unlock()
	out = slices.DeleteFunc(out, func(p *process) bool { return !p.hasBegun() })
	slices.SortFunc(out, func(a, b *process) int {
		return cmp.Or(a.info.StartedAt.Compare(b.info.StartedAt), cmp.Compare(a.info.ID, b.info.ID))
	})
	return out
}

// trim forgets the oldest ended processes beyond maxEnded.
func (t *procTable) trim() {
	t.mu.Lock()
	n := len(t.byID)
	t.mu.Unlock()
	if n <= maxEnded {
		return
	}
	var ended []*process
	for _, p := range t.all() {
		p.out.mu.Lock()
		done := p.out.done && len(p.out.readers) == 0
		p.out.mu.Unlock()
		if done && p.tree.empty() {
			ended = append(ended, p)
		}
	}
	for len(ended) > maxEnded {
		ended[0].release()
		ended = ended[1:]
	}
}

func (t *procTable) setLimits(openFiles, processes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openFiles, t.processes = uint64(max(openFiles, 0)), uint64(max(processes, 0))
}

// rlimits are set in the child. PID 1 itself has no RLIMIT_NPROC: it needs
// threads when its children have used theirs up.
func (t *procTable) rlimits() []rlimit {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []rlimit
	if n := t.openFiles; n > 0 {
		out = append(out, rlimit{unix.RLIMIT_NOFILE, unix.Rlimit{Cur: n, Max: n}})
	}
	if n := t.processes; n > 0 {
		out = append(out, rlimit{unix.RLIMIT_NPROC, unix.Rlimit{Cur: n, Max: n}})
	}
	return out
}

func (t *procTable) nextMark() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark = t.mark%markMax + 1
	return markBase - t.mark*markStep
}

func (t *procTable) maxProcesses() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.processes
}
