package manager

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/internal/manager/pool"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options wire a manager.
type Options struct {
	Keepers   Keepers
	Templates Templates
	Journal   Journal // nil: nothing is remembered and Close kills everything
	// Boundaries are those that the keepers run, strongest first.
	Boundaries []sandbox.Boundary
	Guest      string // path of belljar-guest
	Build      string // build ID that guests must have
	// Defaults apply where a spec is silent; zero fields are filled from
	// sandbox.DefaultLimits.
	Defaults sandbox.Limits
	LogDir   string // captured output; empty: capture is unsupported
	Database string // path of the journal, of which the size is told; empty: it is not
	// Images, Snapshots and Forks keep the images of paused sandboxes, those of
	// snapshots, and those that forks are made from, which last no longer than
	// that. nil, all three: none of it is supported.
	Images, Snapshots, Forks *image.Store
	// Prepared keeps the images of templates with a start command. nil: such
	// templates are unsupported.
	Prepared *image.Store
	PoolFile string // with the sizes of pools; empty: none is kept
	// QuotaFile has the bounds of what is saved. Empty: none can be set.
	QuotaFile string
	Log       *slog.Logger
	// Crash, when set, is called at every crash point. Tests only.
	Crash func(point string)
}

// Manager owns the records of all sandboxes of one installation. It is safe
// for concurrent use.
type Manager struct {
	o       Options
	log     *slog.Logger
	ctx     context.Context // ends at Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	creates chan struct{} // one token for each create at work
	tickets tickets
	images  *image.Store // nil: nothing can be paused
	snaps   *snapIndex
	prep    preparations
	can     capabilities
	pool    *pool.Pool // nil: none is kept
	draws   draws
	quotas  quotas
	ids     []byte // what machine IDs are made with, besides a sandbox's ID

	mu      sync.Mutex
	byID    map[sandbox.ID]*entry
	byName  map[string]*entry // the living ones
	closed  bool
	queued  int                 // creates that wait for a token
	forking map[sandbox.ID]bool // images of forks that are at work

	maxDead int // records of dead sandboxes that are kept
}

// maxQueued bounds the creates that wait; more are refused as retryable.
const maxQueued = 1024

// closeTime bounds how long Close waits for an ephemeral manager's sandboxes.
const closeTime = 30 * time.Second

// Open returns a manager at work. With a journal it adopts what an earlier one
// left before it returns; leftovers are reaped in the background. The context
// bounds Open only.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Defaults = o.Defaults.Merge(sandbox.DefaultLimits(runtime.NumCPU()))
	m := &Manager{
		o: o, log: o.Log,
		byID: map[sandbox.ID]*entry{}, byName: map[string]*entry{}, forking: map[sandbox.ID]bool{},
		// Booting is mostly CPU: more at once than this only makes all slower.
		creates: make(chan struct{}, max(4, 2*runtime.NumCPU())),
		maxDead: deadCount,
	}
	m.images, m.snaps = o.Images, newSnapIndex()
	m.prep.now = map[sandbox.ID]*preparation{}
	if o.PoolFile != "" {
		m.pool = pool.New(pool.Options{Host: poolHost{m}, File: o.PoolFile, Log: o.Log})
	}
	m.ids = m.machineKey()
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if o.Journal != nil {
		err := errors.Join(m.loadQuota(), m.recallSnapshots())
		if err == nil {
			err = m.adopt(ctx)
		}
		if err != nil {
			m.cancel()
			m.wg.Wait()
			return nil, err
		}
		m.wg.Go(m.collectLoop)
	}
	if m.pool != nil {
		m.pool.Start(ctx)
	}
	return m, nil
}

// Close ends the manager. With a journal its sandboxes live on and are adopted
// by the next manager; without one they are killed and given back first.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	var err error
	if m.o.Journal == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = m.KillAll(ctx, sandbox.EndStopped)
	}
	m.closePool(ctx)
	m.cancel()
	m.wg.Wait()
	m.tickets.close()
	if kerr := m.o.Keepers.Close(ctx); err == nil {
		err = kerr
	}
	return err
}

// closePool gives back everything that waits to be claimed.
func (m *Manager) closePool(ctx context.Context) {
	if m.pool != nil {
		m.pool.Close(ctx)
	}
}

// KillAll kills every sandbox, many at once, and returns the first error.
// Nothing waits to be claimed from then on.
func (m *Manager) KillAll(ctx context.Context, reason string) error {
	m.closePool(ctx)
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for _, e := range m.entries() {
		wg.Go(func() {
			if _, err := m.kill(ctx, e, reason); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return first
}

// Live counts the sandboxes that are not dead.
func (m *Manager) Live() int {
	return m.count(sandbox.State.Live)
}

// Active counts what somebody must look after: the sandboxes but for the dead
// and the paused, and pools that are to be kept full.
func (m *Manager) Active() int {
	return len(m.Pools()) + m.count(func(s sandbox.State) bool { return s.Live() && s != sandbox.Paused })
}

func (m *Manager) count(is func(sandbox.State) bool) int {
	n := 0
	for _, e := range m.entries() {
		if is(e.snapshot().State) {
			n++
		}
	}
	return n
}

// List returns the living sandboxes, oldest first; with all, the dead ones too.
func (m *Manager) List(all bool) []sandbox.Sandbox {
	out := []sandbox.Sandbox{}
	for _, e := range m.entries() {
		if sb := e.snapshot(); all || sb.State.Live() {
			out = append(out, sb)
		}
	}
	slices.SortFunc(out, func(a, b sandbox.Sandbox) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return out
}

// Get returns one sandbox by ID or name.
func (m *Manager) Get(ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return e.snapshot(), nil
}

// Templates lists what sandboxes can start from.
func (m *Manager) Templates(ctx context.Context) ([]sandbox.Template, error) {
	return m.o.Templates.List(ctx)
}

// Probe reports what each boundary can do on this host.
func (m *Manager) Probe(ctx context.Context) ([]driver.Report, error) {
	return m.o.Keepers.Probe(ctx)
}

// Wait blocks until the sandbox is dead.
func (m *Manager) Wait(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return e.waitDead(ctx)
}

func (m *Manager) entries() []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*entry, 0, len(m.byID))
	for _, e := range m.byID {
		out = append(out, e)
	}
	return out
}

// find returns the sandbox that ref means: an ID, or the name of a living
// sandbox, or the name that a dead one had last.
func (m *Manager) find(ref string) (*entry, error) {
	m.mu.Lock()
	if e := m.byID[sandbox.ID(ref)]; e != nil {
		m.mu.Unlock()
		return e, nil
	}
	if e := m.byName[ref]; e != nil {
		m.mu.Unlock()
		return e, nil
	}
	m.mu.Unlock()
	var last *entry
	var at time.Time
	for _, e := range m.entries() {
		if sb := e.snapshot(); sb.Name == ref && ref != "" && sb.CreatedAt.After(at) {
			last, at = e, sb.CreatedAt
		}
	}
	if last == nil {
		return nil, sandbox.Errorf(sandbox.NotFound, "no sandbox has this ID or name").WithField("sandbox", ref).
			WithHint("`belljar ls --all` lists them")
	}
	return last, nil
}

// reserve enters a new sandbox into the index, unless its name is taken.
func (m *Manager) reserve(e *entry) error {
	name := e.rec.Sandbox.Name
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return sandbox.Errorf(sandbox.Unavailable, "the manager is ending")
	}
	if name != "" {
		if other := m.byName[name]; other != nil {
			return sandbox.Errorf(sandbox.AlreadyExists, "a sandbox has this name").WithField("name", name).
				WithHint("kill it first, or choose another name")
		}
		m.byName[name] = e
	}
	m.byID[e.id] = e
	return nil
}

// release frees the name of a sandbox that has died.
func (m *Manager) release(e *entry) {
	name := e.snapshot().Name
	m.mu.Lock()
	defer m.mu.Unlock()
	if name != "" && m.byName[name] == e {
		delete(m.byName, name)
	}
}

// load counts the sandboxes on a keeper, with those that wait to be claimed.
func (m *Manager) load(keeper string) int {
	n := 0
	if m.pool != nil {
		n = m.pool.On(keeper)
	}
	for _, e := range m.entries() {
		if e.on(keeper) {
			n++
		}
	}
	return n
}
