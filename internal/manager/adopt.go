package manager

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// askTime bounds how long a keeper may take to list its sandboxes.
const askTime = 10 * time.Second

// adopt loads the journal, takes over what lives and sets out to bury the
// rest. What is buried is so in the background: a caller sees it Killing.
func (m *Manager) adopt(ctx context.Context) error {
	if err := m.recall(ctx); err != nil {
		return err
	}
	keepers, err := m.o.Keepers.Adopt(ctx)
	if err != nil {
		return err
	}
	type found struct {
		k  Keeper
		st wire.Status
	}
	var live []found
	for _, k := range keepers {
		m.tie(k)
		ask, cancel := context.WithTimeout(ctx, askTime)
		list, err := k.List(ask)
		cancel()
		if err != nil {
			// It lives and does not answer: its sandboxes cannot be judged. They
			// are buried below, which goes on until it answers or dies.
			m.log.Error("a keeper does not answer", "keeper", k.Name(), "err", err)
			continue
		}
		for _, st := range list {
			live = append(live, found{k, st})
		}
	}
	m.crash(CrashAdoptListed)
	adopted := map[sandbox.ID]bool{}
	var strays []found
	resting := m.resting()
	maps.Copy(adopted, resting)
	for _, f := range live {
		if resting[f.st.ID] && !m.isPaused(f.st.ID) {
			continue // in between: settled below, one way or another
		}
		if m.adoptOne(f.k, f.st) {
			adopted[f.st.ID] = true
		} else {
			strays = append(strays, f)
		}
	}
	m.crash(CrashAdoptAdopted)
	for _, f := range strays {
		m.spawn(func() { m.removeStray(f.k, f.st.ID) })
	}
	m.spawn(func() { m.buryLost(adopted) })
	m.removeLogs()
	return nil
}

// resting lists the sandboxes that need no keeper to be alive: those that are
// paused, and those that an earlier manager was pausing or resuming.
func (m *Manager) resting() map[sandbox.ID]bool {
	out := map[sandbox.ID]bool{}
	for _, e := range m.entries() {
		if m.images != nil && e.snapshot().State.Rests() && !e.record().Preparing {
			out[e.id] = true
		}
	}
	return out
}

func (m *Manager) isPaused(id sandbox.ID) bool {
	m.mu.Lock()
	e := m.byID[id]
	m.mu.Unlock()
	return e != nil && e.snapshot().State == sandbox.Paused
}

// recall fills the index from the journal.
func (m *Manager) recall(ctx context.Context) error {
	records, err := m.o.Journal.Load(ctx)
	if err != nil {
		return err
	}
	for _, r := range records {
		e := m.newEntry(r)
		close(e.created)
		if e.events, err = m.o.Journal.Events(ctx, e.id); err != nil {
			return err
		}
		m.byID[e.id] = e
		if r.Sandbox.State == sandbox.Dead {
			e.cancel()
		} else if r.Sandbox.Name != "" {
			m.byName[r.Sandbox.Name] = e
		}
	}
	return nil
}

// tie connects the records of a keeper with it: also those of sandboxes that
// it does not have, which it is asked to remove all the same.
func (m *Manager) tie(k Keeper) {
	for _, e := range m.entries() {
		if e.on(k.Name()) {
			e.mu.Lock()
			e.keeper = k
			e.mu.Unlock()
		}
	}
}

// adoptOne takes over a sandbox that a keeper has, when the journal says that
// it runs there and it has not ended meanwhile.
func (m *Manager) adoptOne(k Keeper, st wire.Status) bool {
	m.mu.Lock()
	e := m.byID[st.ID]
	m.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	r := &e.rec
	here := r.Keeper == k.Name() && r.Instance == k.Instance()
	ok := here && !r.Preparing && r.Sandbox.State == sandbox.Running && r.Sandbox.Generation == st.Generation && (st.Running || st.Exit != nil)
	captured := r.Captured
	e.mu.Unlock()
	if !ok {
		return false
	}
	m.spawn(func() { m.follow(e) }) // tells how it ended, too, when it has
	if st.Running {
		m.arm(e)
		for _, id := range captured {
			m.recapture(e, id)
		}
		m.resumeCommand(e)
		m.spawn(func() { m.findLeases(e) })
	}
	m.log.Info("adopted", "sandbox", e.id, "keeper", k.Name())
	return true
}

// removeStray has a keeper remove a sandbox that no record claims, or whose
// record was never Running.
func (m *Manager) removeStray(k Keeper, id sandbox.ID) {
	ctx, cancel := context.WithTimeout(m.ctx, cleanupTime)
	defer cancel()
	if _, err := k.Delete(ctx, id); err != nil && m.ctx.Err() == nil {
		m.log.Error("a stray sandbox cannot be removed", "sandbox", id, "keeper", k.Name(), "err", err)
	}
}

// buryLost reaps what dead keepers have left and buries every record that was
// not adopted.
func (m *Manager) buryLost(adopted map[sandbox.ID]bool) {
	ctx, cancel := context.WithTimeout(m.ctx, 2*cleanupTime)
	defer cancel()
	if err := m.o.Keepers.Reap(ctx, ""); err != nil {
		m.log.Error("leftovers of dead keepers cannot be removed yet", "err", err)
	}
	m.crash(CrashAdoptReaped)
	m.sweepImages()
	m.sweepPrepared(ctx)
	m.settleTransit()
	for _, e := range m.entries() {
		select {
		case <-e.created: // of an earlier manager, or complete
		default:
			continue
		}
		sb := e.snapshot()
		if adopted[e.id] || sb.State == sandbox.Dead || sb.State == sandbox.Running && e.mine() {
			continue
		}
		reason := sb.EndReason
		if reason == "" {
			reason = sandbox.EndLost
		}
		if _, err := m.bury(ctx, e, reason, "not there any more after a restart of the daemon"); err != nil {
			m.log.Error("a lost sandbox cannot be given back yet", "sandbox", e.id, "err", err)
		}
	}
}

// mine reports whether this manager created the sandbox.
func (e *entry) mine() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

// removeLogs removes the output of sandboxes that nobody remembers.
func (m *Manager) removeLogs() {
	if m.o.LogDir == "" {
		return
	}
	dirs, err := os.ReadDir(m.o.LogDir)
	if err != nil {
		return
	}
	for _, d := range dirs {
		id, err := sandbox.ParseID(d.Name())
		m.mu.Lock()
		known := err == nil && m.byID[id] != nil
		m.mu.Unlock()
		if err == nil && !known {
			m.removeLog(id)
		}
	}
}

func (m *Manager) removeLog(id sandbox.ID) {
	if m.o.LogDir == "" {
		return
	}
	if err := os.RemoveAll(filepath.Join(m.o.LogDir, string(id))); err != nil {
		m.log.Warn("logs were not removed", "sandbox", id, "err", err)
	}
}

// How long, and how many, dead records are kept.
const (
	deadLife  = 24 * time.Hour
	deadCount = 200
	collectAt = time.Hour
)

func (m *Manager) collectLoop() {
	for pauseFor(m.ctx, collectAt) {
		m.collect()
	}
}

// collect forgets the oldest dead records.
func (m *Manager) collect() {
	type dead struct {
		e  *entry
		at time.Time
	}
	var all []dead
	for _, e := range m.entries() {
		if sb := e.snapshot(); sb.State == sandbox.Dead {
			all = append(all, dead{e, sb.EndedAt})
		}
	}
	slices.SortFunc(all, func(a, b dead) int { return b.at.Compare(a.at) }) // newest first
	for i, d := range all {
		if i < m.maxDead && time.Since(d.at) < deadLife {
			continue
		}
		if err := m.forget(m.ctx, d.e); err != nil {
			m.log.Warn("a dead record was not forgotten", "sandbox", d.e.id, "err", err)
			return
		}
	}
}

// forget removes the record of a dead sandbox, and its logs.
func (m *Manager) forget(ctx context.Context, e *entry) error {
	if m.o.Journal != nil {
		if err := m.o.Journal.Forget(ctx, e.id); err != nil {
			return err
		}
	}
	m.mu.Lock()
	delete(m.byID, e.id)
	m.mu.Unlock()
	m.removeLog(e.id)
	return nil
}
