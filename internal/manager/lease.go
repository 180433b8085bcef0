package manager

import (
	"slices"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// leased is a process that the guest kills when its client does not come back.
// The guest decides; the manager only finds out, to tell of it.
type leased struct {
	time     time.Duration
	watching bool
}

// maxLeases bounds the leased processes that are remembered of one sandbox. Of
// more the guest takes care all the same.
const maxLeases = 4096

// leaseSlack is how much later than the guest the manager looks.
const leaseSlack = time.Second

// lease remembers that a process has a lease.
func (m *Manager) lease(e *entry, id string, d time.Duration) {
	if d <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leases == nil {
		e.leases = map[string]*leased{}
	}
	if len(e.leases) < maxLeases && e.leases[id] == nil {
		e.leases[id] = &leased{time: d}
	}
}

func (m *Manager) unlease(e *entry, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.leases, id)
}

// watchLease looks after a leased process whose stream of output has broken
// off: its client comes back, or its end is to be told.
func (m *Manager) watchLease(e *entry, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.leases[id]
	if l == nil || l.watching {
		return
	}
	l.watching = true
	m.spawn(func() {
		for pauseFor(e.ctx, l.time+leaseSlack) {
			p, err := m.watched(e.ctx, string(e.id), id)
			if err == nil && p.Exit != nil {
				m.exited(e, id, *p.Exit)
			}
			if err == nil && p.Exit != nil || sandbox.KindOf(err) == sandbox.NotFound {
				m.unlease(e, id)
				return
			}
		}
	})
}

// findLeases takes up, after a restart, the leases of an adopted sandbox. Its
// clients are about to come back.
func (m *Manager) findLeases(e *entry) {
	g, err := m.guest(e)
	if err != nil {
		return // paused again, or dead
	}
	list, err := List[guest.Process](e.ctx, g, "/processes", nil, maxProcesses)
	if err != nil {
		m.log.Warn("the processes of an adopted sandbox cannot be listed", "sandbox", e.id, "err", err)
		return
	}
	for _, p := range list {
		if p.Lease <= 0 || p.Lease > sandbox.MaxTimeout || CheckProcessID(p.ID) != nil || e.told(p.ID) {
			continue
		}
		m.lease(e, p.ID, p.Lease)
		m.watchLease(e, p.ID)
	}
}

// told reports whether the exit of a process has been noted.
func (e *entry) told(process string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.events, func(ev sandbox.Event) bool {
		return ev.Kind == sandbox.EventExit && ev.Process == process
	})
}
