package pool

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options wire a [Pool].
type Options struct {
	Host Host
	File string // in which the sizes are kept
	Log  *slog.Logger
}

// Pool is all warm pools of one manager. It is safe for concurrent use.
type Pool struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // has a token when there may be something to do
	wg     sync.WaitGroup

	writing sync.Mutex // of the file, with what it says; before mu

	mu      sync.Mutex
	closed  bool
	sets    []*set
	making  int       // of all sets
	took    time.Time // when one was taken last
	waits   time.Time // since when what is missing has waited for that; zero: it does not
	passing []*Entry  // being made or given back
	cost    map[wire.Park]int64
}

// set is one pool: sandboxes of one template with the same limits.
type set struct {
	spec sandbox.PoolSpec

	plan    *Plan
	planned time.Time // when plan was made; zero: make it now
	reason  string    // why nothing can be made
	after   time.Time // nothing is made before: it failed lately
	pause   time.Duration

	parked []*Entry
	making map[wire.Park]int
	busy   sync.WaitGroup // those that are being made; none is begun once the set is gone

	boost map[wire.Park]int // that demand has added
	until time.Time

	hits, misses int64
}

// Entry is one sandbox that waits, or did until it was taken.
type Entry struct {
	ID     sandbox.ID // by which its keeper knows it
	Keeper Keeper
	How    wire.Park

	key    Key
	image  string
	cancel context.CancelFunc // of its watch
	since  time.Time
	memory int64
}

const (
	// planEvery is how often a template is looked at again: a sandbox of one that
	// has changed is never served, and not kept longer than this.
	planEvery = 30 * time.Second
	// boostTime is how long demand counts after a request that found nothing.
	boostTime = 2 * time.Minute
	// After a failure the next try comes later and later.
	firstPause, longestPause = time.Second, time.Minute
	// youngTime is how long a sandbox must have waited before its end is no sign
	// of something that is wrong.
	youngTime = 10 * time.Second
)

// New returns a pool that makes nothing until [Pool.Start].
func New(o Options) *Pool {
	return &Pool{o: o, wake: make(chan struct{}, 1), cost: map[wire.Park]int64{}}
}

// Start reads the sizes that were set and begins to make sandboxes. The context
// gives its values only: [Pool.Close] ends it.
func (p *Pool) Start(ctx context.Context) {
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	specs, err := load(p.o.File)
	if err != nil {
		// A pool is a matter of speed: nothing depends on it.
		p.o.Log.Error("the sizes of pools cannot be read, so none is kept", "err", err)
	}
	for _, s := range specs {
		p.sets = append(p.sets, newSet(s))
	}
	p.wg.Go(p.run)
}

func newSet(s sandbox.PoolSpec) *set {
	return &set{spec: s, making: map[wire.Park]int{}, boost: map[wire.Park]int{}}
}

// Close ends the making and gives back everything that waits. Nothing is served
// from then on. It may be called again.
func (p *Pool) Close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait() // what was being made is parked, or given back
	p.mu.Lock()
	var all []*Entry
	for _, s := range p.sets {
		all = append(all, s.parked...)
		s.parked = nil
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range all {
		e.cancel()
		wg.Go(func() { p.giveBack(ctx, e) })
	}
	wg.Wait()
}

// Wake has the pool look for work: a place has become free.
func (p *Pool) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Set sets the size of the pool of a template and limits, and remembers it.
func (p *Pool) Set(ctx context.Context, s sandbox.PoolSpec) (sandbox.Pool, error) {
	if err := s.Validate(); err != nil {
		return sandbox.Pool{}, err
	}
	plan, err := p.o.Host.Plan(ctx, s.Template, s.Limits)
	if err != nil {
		return sandbox.Pool{}, err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := p.affordable(s); err != nil {
		return sandbox.Pool{}, err
	}
	specs := slices.DeleteFunc(p.specs(), func(o sandbox.PoolSpec) bool { return same(o, s) })
	if err := save(p.o.File, append(specs, s)); err != nil {
		return sandbox.Pool{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return sandbox.Pool{}, sandbox.Errorf(sandbox.Unavailable, "the manager is ending")
	}
	one := p.find(s)
	if one == nil {
		one = newSet(s)
		p.sets = append(p.sets, one)
	}
	one.spec, one.plan, one.planned = s, plan, time.Now()
	one.reason, one.after, one.pause = "", time.Time{}, 0
	clear(one.boost)
	p.Wake()
	return one.state(), nil
}

// Remove takes the pools of a template away, whatever their limits, and returns
// when nothing of them is left.
func (p *Pool) Remove(ctx context.Context, template string) error {
	of := func(s sandbox.PoolSpec) bool { return s.Template == template }
	p.writing.Lock()
	specs := p.specs()
	kept := slices.DeleteFunc(slices.Clone(specs), of)
	if len(kept) == len(specs) {
		p.writing.Unlock()
		return sandbox.Errorf(sandbox.NotFound, "no pool is kept of this template").WithField("template", template).
			WithHint("`belljar pool ls` lists them")
	}
	if err := save(p.o.File, kept); err != nil {
		p.writing.Unlock()
		return err
	}
	p.mu.Lock()
	var gone []*Entry
	var wg sync.WaitGroup
	p.sets = slices.DeleteFunc(p.sets, func(s *set) bool {
		if of(s.spec) {
			wg.Go(s.busy.Wait)
			gone = append(gone, s.parked...)
			s.parked = nil
			return true
		}
		return false
	})
	p.passing = append(p.passing, gone...)
	p.mu.Unlock()
	p.writing.Unlock()
	for _, e := range gone {
		e.cancel()
		wg.Go(func() { p.giveBack(ctx, e) })
	}
	wg.Wait()
	return nil
}

// specs lists what is set.
func (p *Pool) specs() []sandbox.PoolSpec {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]sandbox.PoolSpec, 0, len(p.sets))
	for _, s := range p.sets {
		out = append(out, s.spec)
	}
	return out
}

// same reports whether two sizes are of one pool.
func same(a, b sandbox.PoolSpec) bool { return a.Template == b.Template && a.Limits == b.Limits }

// find returns the pool that s is of, with p.mu held.
func (p *Pool) find(s sandbox.PoolSpec) *set {
	for _, o := range p.sets {
		if same(o.spec, s) {
			return o
		}
	}
	return nil
}

// List tells where every pool stands, by template.
func (p *Pool) List() []sandbox.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]sandbox.Pool, 0, len(p.sets))
	for _, s := range p.sets {
		out = append(out, s.state())
	}
	slices.SortStableFunc(out, func(a, b sandbox.Pool) int { return strings.Compare(a.Template, b.Template) })
	return out
}

func (s *set) state() sandbox.Pool {
	out := sandbox.Pool{PoolSpec: s.spec, Hits: s.hits, Misses: s.misses, Reason: s.reason}
	out.Ceiling = s.spec.Most()
	for _, h := range []wire.Park{wire.Booted, wire.Ready} {
		out.Target += s.target(h)
	}
	for _, e := range s.parked {
		out.MemoryBytes += e.memory
		if e.How == wire.Ready {
			out.ReadyNow++
		} else {
			out.BootedNow++
		}
	}
	return out
}

// Configured tells whether any pool is kept.
func (p *Pool) Configured() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sets) > 0
}

// Of reports whether a pool of the template is kept.
func (p *Pool) Of(template string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.sets, func(s *set) bool { return s.spec.Template == template })
}

// Has reports whether something of the template waits.
func (p *Pool) Has(template string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.sets, func(s *set) bool { return s.spec.Template == template && len(s.parked) > 0 })
}

// On counts the sandboxes that a keeper has for the pool.
func (p *Pool) On(keeper string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	count := func(list []*Entry) {
		for _, e := range list {
			if e.Keeper != nil && e.Keeper.Name() == keeper {
				n++
			}
		}
	}
	for _, s := range p.sets {
		count(s.parked)
	}
	count(p.passing)
	return n
}

// parallel is how many are made at once: booting is mostly CPU.
var parallel = max(1, runtime.NumCPU()/2)
