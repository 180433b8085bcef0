package pool

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Identify tells templates apart: one that was made anew under the same name is
// another.
func Identify(t sandbox.Template) string {
	b, err := json.Marshal([]any{t.Name, t.Kind, t.Digest, t.CreatedAt.UTC().Round(0), t.Start, t.Ready})
	if err != nil {
		return "" // a time beyond the year 9999; equal to no other template's either
	}
	return string(b)
}

// RootKey encodes a root for a [Key].
func RootKey(r driver.Root) string {
	b, err := json.Marshal(r)
	if err != nil {
		return "" // strings and booleans can be encoded
	}
	return string(b)
}

// serves tells how well a waiting sandbox serves a request: 0 not at all.
func (e *Entry) serves(w *Want) int {
	switch {
	case e.key != w.Key:
		return 0
	case e.How == wire.Ready && e.image == w.Image && (w.Image != "" || !w.Restore):
		return 2
	case e.How == wire.Booted:
		return 1
	}
	return 0
}

// Take removes the sandbox that serves a request best from the pool and returns
// it, nil when there is none. It is the caller's, to be claimed once and given
// to Discard if that fails. First tells that this is the request's first try:
// its misses and hits count once.
func (p *Pool) Take(w Want, first bool) *Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	defer p.Wake()
	var from *set
	best, at := 0, 0
	for _, s := range p.sets {
		for i, e := range s.parked {
			if n := e.serves(&w); n > best {
				from, best, at = s, n, i
			}
		}
	}
	if first && best < 2 {
		p.missed(&w, best > 0)
	}
	if best == 0 {
		return nil
	}
	e := from.parked[at]
	from.parked = slices.Delete(from.parked, at, at+1)
	e.cancel()
	p.took = time.Now()
	if first {
		from.hits++
	}
	return e
}

// missed raises the target of the pool that should have served a request, or
// has done so with less than it keeps.
func (p *Pool) missed(w *Want, served bool) {
	for _, s := range p.sets {
		switch how := s.kind(w); {
		case s.spec.Template != w.Name || s.plan == nil:
		case s.plan.Key != w.Key:
			if s.plan.Limits == w.Limits && s.plan.Explicit == w.Explicit {
				s.planned = time.Time{} // the template is another one now
			}
		case how == "" || served && how == wire.Booted:
		default:
			if !served {
				s.misses++
			}
			if base := s.spec.Ready + s.spec.Booted; s.boost[wire.Ready]+s.boost[wire.Booted] < s.spec.Most()-base {
				s.boost[how]++
			}
			s.until = time.Now().Add(boostTime)
		}
	}
}

// kind is what the pool should have for a request: "" when it keeps no such.
func (s *set) kind(w *Want) wire.Park {
	switch {
	case (!w.Restore || w.Image != "") && s.spec.Ready > 0:
		return wire.Ready
	case s.spec.Booted > 0:
		return wire.Booted
	}
	return ""
}

// Discard has a sandbox that was taken given back, in the background: its claim
// has failed, and whatever is left of it under its first name goes.
func (p *Pool) Discard(e *Entry) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.dropLocked(e)
	}
	p.mu.Unlock()
	if closed {
		p.giveBack(p.ctx, e)
	}
}

// discardTries is how often it is tried to give one back.
const discardTries = 5

// giveBack has a sandbox removed. What cannot be is left to the next manager,
// which does not know it.
func (p *Pool) giveBack(ctx context.Context, e *Entry) {
	defer p.passed(e)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for n := range discardTries {
		err := p.o.Host.Discard(ctx, e.Keeper, e.ID)
		if err == nil {
			return
		}
		p.o.Log.Warn("a sandbox of a pool cannot be given back yet", "sandbox", e.ID, "keeper", e.Keeper.Name(), "err", err)
		if !wait(ctx, time.Second<<n) {
			return
		}
	}
}

// passed forgets a sandbox that was being made or given back.
func (p *Pool) passed(e *Entry) {
	p.mu.Lock()
	p.passing = slices.DeleteFunc(p.passing, func(o *Entry) bool { return o == e })
	p.mu.Unlock()
	p.Wake()
}

// wait waits for d and reports whether ctx still lives.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
