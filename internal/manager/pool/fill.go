package pool

import (
	"context"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// run makes what is missing until the pool is closed.
func (p *Pool) run() {
	for {
		p.refresh()
		for p.makeOne() {
		}
		t := time.NewTimer(p.nextLook())
		select {
		case <-p.wake:
		case <-t.C:
		case <-p.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// nextLook is how long nothing can be due unless somebody wakes the pool.
func (p *Pool) nextLook() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := planEvery
	for _, s := range p.sets {
		for _, at := range []time.Time{s.until, s.after, p.quietAt(), p.urgentAt()} {
			if d := time.Until(at); d > 0 {
				next = min(next, d)
			}
		}
		next = min(next, time.Until(s.planned.Add(planEvery)))
	}
	return max(next, 10*time.Millisecond)
}

// refresh looks at the templates again and throws away what a create would make
// in another way now, and what is beyond the target.
func (p *Pool) refresh() {
	p.mu.Lock()
	due := map[*set]sandbox.PoolSpec{}
	for _, s := range p.sets {
		if time.Since(s.planned) >= planEvery {
			due[s] = s.spec
		}
	}
	p.mu.Unlock()
	for s, spec := range due {
		plan, err := p.o.Host.Plan(p.ctx, spec.Template, spec.Limits)
		p.mu.Lock()
		s.planned = time.Now()
		if s.plan = plan; err != nil {
			s.plan, s.reason = nil, sandbox.AsError(err).Message
		} else if s.pause == 0 {
			s.reason = ""
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for _, s := range p.sets {
		if time.Now().After(s.until) {
			clear(s.boost)
		}
		s.parked = slices.DeleteFunc(s.parked, func(e *Entry) bool {
			if s.plan != nil && e.key == s.plan.Key && (e.How == wire.Booted || e.image == s.plan.Image) {
				return false
			}
			p.dropLocked(e)
			return true
		})
		for _, how := range []wire.Park{wire.Ready, wire.Booted} {
			s.trim(p, how)
		}
	}
}

// trim gives back what is beyond the target: the eldest go.
func (s *set) trim(p *Pool, how wire.Park) {
	beyond := s.have(how) - s.target(how)
	s.parked = slices.DeleteFunc(s.parked, func(e *Entry) bool {
		if beyond <= 0 || e.How != how {
			return false
		}
		beyond--
		p.dropLocked(e)
		return true
	})
}

// dropLocked gives a sandbox back in the background; p.mu is held. The caller is
// counted by p.wg, or has seen that the pool is not closed.
func (p *Pool) dropLocked(e *Entry) {
	e.cancel()
	p.passing = append(p.passing, e)
	p.wg.Go(func() { p.giveBack(p.ctx, e) })
}

func (s *set) have(how wire.Park) int {
	n := s.making[how]
	for _, e := range s.parked {
		if e.How == how {
			n++
		}
	}
	return n
}

// target is how many of a kind there should be.
func (s *set) target(how wire.Park) int {
	if how == wire.Ready {
		return s.spec.Ready + s.boost[how]
	}
	return s.spec.Booted + s.boost[how]
}

// makeOne begins to make one sandbox, if one is missing and there is leave to.
func (p *Pool) makeOne() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, how := p.missing()
	if s == nil {
		p.waits = time.Time{}
	}
	if s == nil || p.closed || p.making >= parallel || !p.quiet() {
		return false
	}
	if why := p.pressed(how); why != "" {
		s.reason, s.after = why, time.Now().Add(5*time.Second)
		return true // another set may have less to make
	}
	release, ok := p.o.Host.Slot(!time.Now().Before(p.urgentAt()))
	if !ok {
		return false
	}
	p.making++
	s.making[how]++
	plan := s.plan
	s.busy.Add(1)
	p.wg.Go(func() {
		defer s.busy.Done()
		e, err := p.park(plan, how)
		release()
		if !p.made(s, how, e, err) && e != nil {
			p.giveBack(p.ctx, e)
		}
	})
	return true
}

// How long the making waits after a claim, so that it does not compete with
// what the claim was for; and how long it waits for a pause between claims.
const (
	settleTime    = 50 * time.Millisecond
	longestSettle = 4 * settleTime
	// patience is how long creates that wait have the processors to themselves.
	// Then one is made beside them: a pool that is empty because of its load
	// would stay so, and each of them boots a kernel as well.
	patience = time.Second
)

// urgentAt is when what is missing has waited long enough.
func (p *Pool) urgentAt() time.Time {
	if p.waits.IsZero() {
		return time.Now().Add(patience)
	}
	return p.waits.Add(patience)
}

// quietAt is when the claims may have done the first of what they were for.
func (p *Pool) quietAt() time.Time {
	at := p.took.Add(settleTime)
	if !p.waits.IsZero() && at.After(p.waits.Add(longestSettle)) {
		at = p.waits.Add(longestSettle)
	}
	return at
}

// quiet tells whether there has been a pause between claims, or what is missing
// has waited for one too long.
func (p *Pool) quiet() bool {
	if p.waits.IsZero() {
		p.waits = time.Now()
	}
	return !time.Now().Before(p.quietAt())
}

// missing returns the set that lacks most of what it should have, and what.
// What is ready serves more, so it comes first.
func (p *Pool) missing() (worst *set, how wire.Park) {
	now := time.Now()
	for _, h := range []wire.Park{wire.Ready, wire.Booted} {
		most := 0
		for _, s := range p.sets {
			if s.plan == nil || now.Before(s.after) {
				continue
			}
			if n := s.target(h) - s.have(h); n > most {
				worst, how, most = s, h, n
			}
		}
		if worst != nil {
			return worst, how
		}
	}
	return nil, ""
}

// park has a keeper make one. What it returns with an error is to be given back.
func (p *Pool) park(plan *Plan, how wire.Park) (*Entry, error) {
	k, err := p.o.Host.Acquire(p.ctx)
	if err != nil {
		return nil, err
	}
	e := &Entry{
		ID: sandbox.NewID(), Keeper: k, How: how, key: plan.Key, cancel: func() {}, since: time.Now(),
	}
	p.mu.Lock()
	p.passing = append(p.passing, e)
	p.mu.Unlock()
	req := plan.Request
	req.ID, req.Park = e.ID, how
	if how == wire.Booted {
		req.Image = ""
	} else {
		e.image = plan.Image
	}
	p.o.Host.Crash(CrashParking)
	if _, err := k.Create(p.ctx, &req); err != nil {
		return e, err // without an answer it may be there
	}
	p.o.Host.Crash(CrashParked)
	if st, err := k.Stats(p.ctx, e.ID); err == nil {
		e.memory = st.MemoryBytes
	}
	return e, nil
}

// made puts a new sandbox into its set, and reports false when it is not wanted
// any more or there is none.
func (p *Pool) made(s *set, how wire.Park, e *Entry, err error) bool {
	defer p.Wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	s.making[how]--
	if err != nil {
		if p.ctx.Err() == nil {
			p.o.Log.Warn("a pool cannot be filled", "template", s.spec.Template, "err", err, "cause", sandbox.AsError(err).Unwrap())
			s.failed(sandbox.AsError(err).Message)
		}
		return false
	}
	if e.memory > 0 {
		p.cost[how] = e.memory
	}
	if p.closed || !slices.Contains(p.sets, s) || s.plan == nil || e.key != s.plan.Key { // removed or changed meanwhile
		return false
	}
	p.passing = slices.DeleteFunc(p.passing, func(o *Entry) bool { return o == e })
	s.reason, s.after, s.pause = "", time.Time{}, 0
	s.parked = append(s.parked, e)
	ctx, cancel := context.WithCancel(p.ctx)
	e.cancel = cancel
	p.wg.Go(func() { p.watch(ctx, s, e) })
	return true
}

// failed has the set wait before the next try, longer each time.
func (s *set) failed(why string) {
	s.reason = why
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	s.after = time.Now().Add(s.pause)
}

// watch replaces a sandbox that ends while it waits. It ends with the wait.
func (p *Pool) watch(ctx context.Context, s *set, e *Entry) {
	defer e.cancel()
	for {
		st, err := e.Keeper.Wait(ctx, e.ID)
		if ctx.Err() != nil {
			return // taken, or the pool is closed
		}
		if err == nil || !e.Keeper.Alive() || sandbox.KindOf(err) == sandbox.NotFound {
			p.o.Log.Warn("a sandbox of a pool has ended", "template", s.spec.Template, "sandbox", e.ID, "exit", st.Exit, "fault", st.Fault, "err", err)
			break
		}
		if !wait(ctx, time.Second) {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(s.parked, e)
	if i < 0 || p.closed {
		return // taken
	}
	s.parked = slices.Delete(s.parked, i, i+1)
	if time.Since(e.since) < youngTime && e.Keeper.Alive() {
		s.failed("the last one ended soon after it was made")
	}
	p.dropLocked(e)
}
