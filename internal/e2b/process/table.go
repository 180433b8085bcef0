package process

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

// idPrefix begins the guest's IDs of processes that were begun here, so that
// they are known again after the daemon has been restarted.
const idPrefix = "e2b"

// Bounds on what is remembered of one sandbox.
const (
	maxKnown       = 2048
	maxConfigBytes = 4 << 20
)

// entry is one process that was begun through Start.
type entry struct {
	id     string
	pid    uint32
	tag    string
	config *wire.ProcessConfig
	size   int // of config, where it counts
	pty    bool
	stdin  bool
	ended  bool
	seq    int64
}

// table remembers what was asked for. The guest has the processes; a process
// that the table does not hold is described by the guest's own word.
type table struct {
	mu    sync.Mutex
	byPID map[uint32]*entry
	bytes int
	seq   int64
}

// remember enters a process. Where there is no room for its configuration, the
// guest's word has to do; where there is none for the process, the oldest goes.
func (t *table) remember(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(t.byPID[e.pid])
	for len(t.byPID) >= maxKnown {
		t.drop(slices.MinFunc(slices.Collect(values(t.byPID)), func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }))
	}
	e.size = proto.Size(e.config)
	if t.bytes+e.size > maxConfigBytes {
		e.config, e.size = &wire.ProcessConfig{Cmd: clip(e.config.GetCmd())}, 0
	}
	t.seq++
	e.seq = t.seq
	t.bytes += e.size
	t.byPID[e.pid] = e
}

func values(m map[uint32]*entry) func(func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for _, e := range m {
			if !yield(e) {
				return
			}
		}
	}
}

// clip bounds a string of which only the beginning is shown.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 256)], "") }

// drop removes e, if it is there. The caller holds mu.
func (t *table) drop(e *entry) {
	if e != nil && t.byPID[e.pid] == e {
		delete(t.byPID, e.pid)
		t.bytes -= e.size
	}
}

func (t *table) forget(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(e)
}

func (t *table) get(pid uint32) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPID[pid]
}

// reconcile brings the table up to the guest's list and returns what is in it,
// in the order of the list.
func (t *table) reconcile(list []guest.Process) []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.seq
	there := map[string]bool{}
	var out []*entry
	for i := range list {
		e := t.adopt(&list[i])
		if e == nil {
			continue
		}
		there[e.id] = true
		out = append(out, e)
	}
	for _, e := range t.byPID {
		if !there[e.id] && e.seq <= before {
			t.drop(e)
		}
	}
	return out
}

// adopt returns the entry of a process in the guest's list, a new one where
// there is none; nil for one that was not begun here. The caller holds mu.
func (t *table) adopt(p *guest.Process) *entry {
	if !strings.HasPrefix(p.ID, idPrefix) || p.PID < 1 || p.PID > math.MaxInt32 {
		return nil
	}
	pid := uint32(p.PID)
	if e := t.byPID[pid]; e != nil && e.id == p.ID {
		c := *e // callers read entries without the lock
		c.ended = p.Exit != nil
		return &c
	}
	e := &entry{id: p.ID, pid: pid, tag: valid(p.Tag), config: spoken(p), pty: p.PTY, stdin: true, ended: p.Exit != nil}
	if t.byPID[pid] == nil && len(t.byPID) < maxKnown && !e.ended {
		t.seq++
		e.seq = t.seq
		kept := *e
		kept.config = &wire.ProcessConfig{Cmd: clip(e.config.GetCmd())}
		if e.size = proto.Size(e.config); t.bytes+e.size <= maxConfigBytes {
			kept.config, kept.size = e.config, e.size
			t.bytes += e.size
		}
		t.byPID[pid] = &kept
	}
	return e
}

// spoken is the guest's word about a process, as a configuration.
func spoken(p *guest.Process) *wire.ProcessConfig {
	c := &wire.ProcessConfig{}
	if len(p.Argv) > 0 {
		c.Cmd = valid(p.Argv[0])
		for _, a := range p.Argv[1:] {
			c.Args = append(c.Args, valid(a))
		}
	}
	if cwd := valid(p.Cwd); cwd != "" {
		c.Cwd = &cwd
	}
	return c
}

func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// refresh asks the guest and returns the processes that were begun here.
func (s *Service) refresh(ctx context.Context) ([]*entry, error) {
	list, err := s.g.Processes(ctx)
	if err != nil {
		return nil, err
	}
	return s.known.reconcile(list), nil
}

// find returns the process that a selector means. Its error is one of the wire.
func (s *Service) find(ctx context.Context, sel *wire.ProcessSelector) (*entry, error) {
	var match func(*entry) bool
	var what string
	switch by := sel.GetSelector().(type) {
	case *wire.ProcessSelector_Pid:
		if e := s.known.get(by.Pid); e != nil {
			return e, nil
		}
		what = "called " + strconv.FormatUint(uint64(by.Pid), 10)
		match = func(e *entry) bool { return e.pid == by.Pid }
	case *wire.ProcessSelector_Tag:
		what = "tagged " + strconv.Quote(clip(by.Tag))
		match = func(e *entry) bool { return e.tag == by.Tag && by.Tag != "" }
	default:
		return nil, reply.Coded(connect.CodeInvalidArgument, "no process is named")
	}
	all, err := s.refresh(ctx)
	if err != nil {
		return nil, reply.Error(err)
	}
	var ended *entry
	for _, e := range all {
		if match(e) {
			if !e.ended {
				return e, nil
			}
			ended = e
		}
	}
	if ended == nil {
		return nil, notFound(what)
	}
	return ended, nil
}
