package pool

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// host is a manager with one keeper, both without anything behind them.
type host struct {
	mu      sync.Mutex
	digest  string // of the template as it is now
	planErr error
	makeErr error
	busy    bool
	alive   map[sandbox.ID]chan struct{} // closed when it ends
	made    int
	gone    int
}

func newHost() *host { return &host{digest: "1", alive: map[sandbox.ID]chan struct{}{}} }

func (h *host) Plan(_ context.Context, template string, limits sandbox.Limits) (*Plan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.planErr != nil {
		return nil, h.planErr
	}
	return &Plan{
		Key:     Key{Boundary: sandbox.GVisor, Template: Identify(sandbox.Template{Name: template, Digest: h.digest}), Limits: limits},
		Request: wire.Create{Root: driver.Root{Path: "/" + template}, Limits: limits},
	}, nil
}

func (h *host) Slot(bool) (func(), bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return func() {}, !h.busy
}

func (h *host) Acquire(context.Context) (Keeper, error) { return h, nil }
func (h *host) Crash(string)                            {}
func (h *host) Name() string                            { return "k" }
func (h *host) Alive() bool                             { return true }

func (h *host) Create(_ context.Context, req *wire.Create) (*wire.Created, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.makeErr != nil {
		return nil, h.makeErr
	}
	h.made++
	h.alive[req.ID] = make(chan struct{})
	return &wire.Created{Status: wire.Status{ID: req.ID, Parked: req.Park}}, nil
}

func (h *host) Wait(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	h.mu.Lock()
	ended := h.alive[id]
	h.mu.Unlock()
	select {
	case <-ended:
		return wire.Status{ID: id}, nil
	case <-ctx.Done():
		return wire.Status{}, ctx.Err()
	}
}

func (h *host) Stats(context.Context, sandbox.ID) (sandbox.Stats, error) {
	return sandbox.Stats{MemoryBytes: 1 << 20}, nil
}

func (h *host) Discard(_ context.Context, _ Keeper, id sandbox.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alive[id] != nil {
		delete(h.alive, id)
		h.gone++
	}
	return nil
}

func (h *host) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *host) living() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alive)
}

func begin(t *testing.T, h *host, file string) *Pool {
	t.Helper()
	if file == "" {
		file = filepath.Join(t.TempDir(), "pools.json")
	}
	p := New(Options{Host: h, File: file, Log: slog.New(slog.DiscardHandler)})
	p.Start(t.Context())
	t.Cleanup(func() {
		p.Close(context.WithoutCancel(t.Context()))
		if n := h.living(); n != 0 {
			t.Errorf("%d are left after the end", n)
		}
	})
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (p *Pool) has(ready, booted int) func() bool {
	return func() bool {
		l := p.List()
		return len(l) == 1 && l[0].ReadyNow == ready && l[0].BootedNow == booted
	}
}

func want(t *testing.T, h *host, template string, l sandbox.Limits) Want {
	t.Helper()
	plan, err := h.Plan(t.Context(), template, l)
	if err != nil {
		t.Fatal(err)
	}
	return Want{Key: plan.Key, Name: template}
}

func TestFillAndTake(t *testing.T) {
	h := newHost()
	p := begin(t, h, "")
	if _, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 2, Booted: 1, Ceiling: 4}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is full", p.has(2, 1))
	w := want(t, h, "a", sandbox.Limits{})
	other := want(t, h, "a", sandbox.Limits{MemoryBytes: 1 << 28})
	explicit := w
	explicit.Explicit.Memory = true
	for name, w := range map[string]Want{"limits": other, "explicit": explicit, "template": want(t, h, "b", sandbox.Limits{})} {
		if e := p.Take(w, true); e != nil {
			t.Errorf("another %s was served", name)
		}
	}
	restore := w
	restore.Restore = true
	if e := p.Take(restore, true); e == nil || e.How != wire.Booted {
		t.Errorf("a restore got %+v", e)
	} else {
		p.Discard(e)
	}
	e := p.Take(w, true)
	if e == nil || e.How != wire.Ready {
		t.Fatalf("got %+v", e)
	}
	p.Discard(e)
	eventually(t, "it is full again", p.has(2, 1))
	if l := p.List()[0]; l.Hits != 2 || l.Misses != 0 || l.Target != 3 || l.MemoryBytes != 3<<20 {
		t.Errorf("%+v", l)
	}
	if !p.Of("a") || p.Of("b") || p.On("k") < 3 || p.On("l") != 0 {
		t.Error("it does not know what it has")
	}
}

// Nothing is handed out twice, whatever comes at once.
func TestTakeOnce(t *testing.T) {
	h := newHost()
	p := begin(t, h, "")
	if _, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 4, Booted: 2, Ceiling: 20}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is full", p.has(4, 2))
	w := want(t, h, "a", sandbox.Limits{})
	var mu sync.Mutex
	seen := map[sandbox.ID]bool{}
	var misses atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				e := p.Take(w, true)
				if e == nil {
					misses.Add(1)
					continue
				}
				mu.Lock()
				if seen[e.ID] {
					t.Errorf("%s was handed out twice", e.ID)
				}
				seen[e.ID] = true
				mu.Unlock()
				p.Discard(e)
			}
		})
	}
	wg.Wait()
	if l := p.List()[0]; l.Hits+l.Misses != 800 || l.Misses != misses.Load() || l.Target > 20 {
		t.Errorf("%+v after %d misses", l, misses.Load())
	}
}

// Demand raises the target up to the ceiling.
func TestDemand(t *testing.T) {
	h := newHost()
	h.busy = true
	p := begin(t, h, "")
	if _, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 1, Ceiling: 3}); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		if e := p.Take(want(t, h, "a", sandbox.Limits{}), true); e != nil {
			t.Fatal("something was made although creates had no place left")
		}
	}
	if l := p.List()[0]; l.Target != 3 || l.Misses != 9 {
		t.Errorf("%+v", l)
	}
	h.set(func() { h.busy = false })
	p.Wake()
	eventually(t, "it is at its ceiling", p.has(3, 0))
}

func TestReplaced(t *testing.T) {
	h := newHost()
	p := begin(t, h, "")
	if _, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 2, Ceiling: 2}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is full", p.has(2, 0))

	// One that ends is replaced.
	h.set(func() {
		for _, ended := range h.alive {
			close(ended)
			break
		}
	})
	eventually(t, "the dead is given back", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.gone == 1 })

	// The template is made anew: what waits is served to nobody, and goes.
	h.set(func() { h.digest = "2" })
	if e := p.Take(want(t, h, "a", sandbox.Limits{}), true); e != nil {
		t.Error("one of the old template was served")
	}
	eventually(t, "those of the old template are gone", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.gone >= 2 })
	eventually(t, "it is full of the new", func() bool {
		if e := p.Take(want(t, h, "a", sandbox.Limits{}), true); e != nil {
			p.Discard(e)
			return true
		}
		return false
	})

	// The template is gone.
	h.set(func() { h.planErr = sandbox.Errorf(sandbox.NotFound, "no such template") })
	p.mu.Lock()
	p.sets[0].planned = time.Time{}
	p.mu.Unlock()
	p.Wake()
	eventually(t, "nothing waits", func() bool { l := p.List()[0]; return l.ReadyNow == 0 && strings.Contains(l.Reason, "no such") })
}

// What cannot be made is tried again, not all the time.
func TestFailure(t *testing.T) {
	h := newHost()
	h.makeErr = sandbox.Errorf(sandbox.Internal, "no luck")
	p := begin(t, h, "")
	if _, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reason is told", func() bool { return p.List()[0].Reason == "no luck" })
	h.set(func() { h.makeErr = nil })
	eventually(t, "it is made in the end", p.has(1, 0))
	if r := p.List()[0].Reason; r != "" {
		t.Errorf("the reason is %q still", r)
	}
}

func TestRemembered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pools.json")
	h := newHost()
	p := begin(t, h, file)
	for _, s := range []sandbox.PoolSpec{
		{Template: "a", Ready: 1}, {Template: "a", Ready: 1, Limits: sandbox.Limits{MemoryBytes: 1 << 28}},
		{Template: "b", Booted: 1}, {Template: "a", Ready: 2, Booted: 1},
	} {
		if _, err := p.Set(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	p.Close(t.Context())
	q := begin(t, h, file)
	var got []string
	for _, s := range q.List() {
		got = append(got, s.Template+limitsOf(s)+":"+strings.Repeat("r", s.Ready)+strings.Repeat("b", s.Booted))
	}
	slices.Sort(got)
	if wanted := []string{"a+:r", "a:rrb", "b:b"}; !slices.Equal(got, wanted) {
		t.Errorf("got %v, want %v", got, wanted)
	}
	if err := q.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := q.Remove(t.Context(), "a"); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("a second removal: %v", err)
	}
	q.Close(t.Context())
	if l := begin(t, h, file).List(); len(l) != 1 || l[0].Template != "b" {
		t.Errorf("after the removal: %+v", l)
	}
}

func limitsOf(s sandbox.Pool) string {
	if s.Limits != (sandbox.Limits{}) {
		return "+"
	}
	return ""
}

// A file that is damaged keeps no daemon from starting.
func TestDamagedFile(t *testing.T) {
	for name, text := range map[string]string{
		"cut off": `{"version":1,"pools":[`, "version": `{"version":2,"pools":[]}`, "size": `{"version":1,"pools":[{"template":"a","limits":{},"ready":-1,"booted":0}]}`,
		"unknown": `{"version":1,"what":1}`,
	} {
		file := filepath.Join(t.TempDir(), "pools.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(file); sandbox.KindOf(err) != sandbox.Internal {
			t.Errorf("%s: %v", name, err)
		}
		if p := begin(t, newHost(), file); p.Configured() {
			t.Errorf("%s: a pool is kept", name)
		}
	}
}

func TestBadSizes(t *testing.T) {
	p := begin(t, newHost(), "")
	for name, tt := range map[string]struct {
		s    sandbox.PoolSpec
		kind sandbox.Kind
	}{
		"nothing":     {sandbox.PoolSpec{Template: "a"}, sandbox.Invalid},
		"negative":    {sandbox.PoolSpec{Template: "a", Ready: -1}, sandbox.Invalid},
		"too many":    {sandbox.PoolSpec{Template: "a", Booted: sandbox.MaxPool + 1}, sandbox.Invalid},
		"low ceiling": {sandbox.PoolSpec{Template: "a", Ready: 3, Ceiling: 2}, sandbox.Invalid},
		"a slash":     {sandbox.PoolSpec{Template: "../a", Ready: 1}, sandbox.Invalid},
		"limits":      {sandbox.PoolSpec{Template: "a", Ready: 1, Limits: sandbox.Limits{MemoryBytes: 1}}, sandbox.Invalid},
	} {
		if _, err := p.Set(t.Context(), tt.s); sandbox.KindOf(err) != tt.kind {
			t.Errorf("%s: got %v, want %s", name, err, tt.kind)
		}
	}
	p.mu.Lock()
	p.cost[wire.Ready] = 1 << 50
	p.mu.Unlock()
	_, err := p.Set(t.Context(), sandbox.PoolSpec{Template: "a", Ready: 5})
	if e := sandbox.AsError(err); sandbox.KindOf(err) != sandbox.ResourceExhausted || e.Field != "ready" || e.Value != "5" || e.Hint == "" {
		t.Errorf("beyond memory: %v", err)
	}
}
