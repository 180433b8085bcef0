package manager

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// settleTransit takes every sandbox that an earlier manager was pausing or
// resuming to a state that rests, and removes the images of all others. Dead
// keepers have been reaped before.
func (m *Manager) settleTransit() {
	if m.images == nil {
		return
	}
	for _, e := range m.entries() {
		settle := m.settleResuming
		switch e.snapshot().State {
		case sandbox.Pausing:
			settle = func(ctx context.Context, e *entry) { m.settlePausing(ctx, e, false) }
		case sandbox.Resuming:
		default:
			continue
		}
		// An error means that the manager ends.
		_, _ = m.beginWork(e, workSettle, func(ctx context.Context) error { settle(ctx, e); return nil })
	}
}

// sweepImages removes the images that belong to no paused sandbox.
func (m *Manager) sweepImages() {
	if m.images == nil {
		return
	}
	err := m.images.Sweep(func(id sandbox.ID) bool {
		m.mu.Lock()
		e := m.byID[id]
		m.mu.Unlock()
		if e == nil {
			return false
		}
		switch e.snapshot().State {
		case sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Killing:
			return true
		}
		return false
	})
	if err != nil {
		m.log.Warn("images were not removed", "err", err)
	}
}

const (
	// askEvery is how often a keeper is asked that may be at work on an image.
	askEvery = 50 * time.Millisecond
	// endedTime is how long a keeper may need to forget a sandbox that it has
	// saved and ended, or one that goes on to answer. One that it still lists then
	// has ended by itself, or does not answer for reasons of its own.
	endedTime = 30 * time.Second
)

// settlePausing finds out what has become of a pause of which nobody knows the
// end, and takes the sandbox there: to Paused when its image is complete, to
// Running when the keeper has it, to Dead when there is neither. Final tells
// that the keeper is not at work on it any more.
func (m *Manager) settlePausing(ctx context.Context, e *entry, final bool) {
	if m.images.Has(e.id) {
		if _, err := m.images.Open(e.id); err == nil {
			if m.retrying(ctx, e, "a paused sandbox cannot be given back yet", func() error { return m.giveBack(ctx, e) }) == nil {
				m.settled(e, m.retrying(ctx, e, "a sandbox cannot be put to rest yet", func() error { return m.rest(e) }))
			}
			return
		}
	}
	patience := time.Now().Add(endedTime)
	for {
		st, where := m.whereabouts(ctx, e)
		if where == whereUnclear && (final || time.Now().After(patience)) {
			where = whereRunning // who follows it tells how it ended, if it did
		}
		switch where {
		case wherePaused:
			m.settled(e, m.saved(ctx, e, nil))
			return
		case whereRunning:
			m.settled(e, m.retrying(ctx, e, "a sandbox cannot go on yet", func() error { return m.unpause(e, st, "it was not paused") }))
			return
		case whereLost:
			m.lose(e, "the sandbox's keeper ended while it was being paused")
			return
		}
		if !pauseFor(ctx, askEvery) {
			return
		}
	}
}

// settled tells of a sandbox that does not rest although it was tried until the
// manager ended; the next one tries again.
func (m *Manager) settled(e *entry, err error) {
	if err == nil {
		m.log.Info("settled", "sandbox", e.id, "state", e.snapshot().State)
	}
}

// What a keeper's word means for a sandbox that was being paused.
const (
	whereUnknown = iota // the keeper does not say
	wherePaused         // the keeper has ended it, which it does once the image is complete
	whereRunning
	whereUnclear // it has ended or does not answer: the keeper may be at work on it
	whereLost
)

// whereabouts asks the keeper for a sandbox that was being paused. That it
// answers under its generation tells that nothing is on its way any more.
func (m *Manager) whereabouts(ctx context.Context, e *entry) (st wire.Status, where int) {
	e.mu.Lock()
	k, instance := e.keeper, e.rec.Instance
	e.mu.Unlock()
	if k == nil || !k.Alive() || k.Instance() != instance {
		return st, whereLost
	}
	ask, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	list, err := k.List(ask)
	if err != nil {
		return st, whereUnknown
	}
	for _, st := range list {
		switch {
		case st.ID != e.id:
		case st.Exit == nil && st.Running && answers(ask, k, st):
			return st, whereRunning
		default:
			return st, whereUnclear
		}
	}
	if m.images.HasDraft(e.id) {
		return st, wherePaused
	}
	return st, whereLost
}

// answers asks a guest for a sign of life.
func answers(ctx context.Context, k Keeper, st wire.Status) bool {
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	g := &Guest{rt: k.Guest(st.ID, st.Generation), gen: st.Generation}
	resp, err := g.send(ctx, Request{Method: http.MethodGet, Path: "/ping"})
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode < 400
}

// unpause makes a sandbox Running that was not paused after all, or that was
// saved and goes on.
func (m *Manager) unpause(e *entry, st wire.Status, why string) error {
	if err := m.images.Remove(e.id); err != nil {
		return err
	}
	err := m.move(e, sandbox.Running, why, func(r *Record) {
		r.Sandbox.Generation = max(r.Sandbox.Generation, st.Generation)
		r.awoken()
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.life++ // who followed it before leaves it to the next
	e.mu.Unlock()
	m.goOn(e)
	return nil
}

// settleResuming takes a sandbox whose resume nobody was told of back to Paused:
// what a keeper has made of its image is ended first. Nothing that happened in
// it was seen by anybody.
func (m *Manager) settleResuming(ctx context.Context, e *entry) {
	if m.retrying(ctx, e, "a sandbox that was not resumed cannot be given back yet", func() error { return m.giveBack(ctx, e) }) != nil {
		return
	}
	if !m.images.Has(e.id) {
		m.lose(e, "its image is gone: "+m.images.Path(e.id))
		return
	}
	m.settled(e, m.retrying(ctx, e, "a sandbox cannot be put back to rest yet", func() error { return m.restAgain(e) }))
}

func (m *Manager) restAgain(e *entry) error {
	e.mu.Lock()
	e.keeper = nil
	e.life++
	e.mu.Unlock()
	return m.move(e, sandbox.Paused, "it was not resumed", func(r *Record) { r.Keeper, r.Instance = "", "" })
}

// lose buries a sandbox of which nothing is left. It does so on its own: a
// burial waits for what is on its way, which is the caller.
func (m *Manager) lose(e *entry, message string) {
	m.spawn(func() {
		ctx, cancel := context.WithTimeout(m.ctx, cleanupTime)
		defer cancel()
		if _, err := m.bury(ctx, e, sandbox.EndLost, strings.TrimSpace(message)); err != nil && m.ctx.Err() == nil {
			m.log.Error("a lost sandbox cannot be given back yet", "sandbox", e.id, "err", err)
		}
	})
}
