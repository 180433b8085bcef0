package manager

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager/pool"
	"github.com/belljar-sh/belljar/sandbox"
)

// parkedHostname is what a sandbox is called until a claim tells.
const parkedHostname = "sandbox"

// poolHost is the manager as its pool sees it.
type poolHost struct{ m *Manager }

var _ pool.Host = poolHost{}

// Plan says what a create that names only template and limits would ask for.
func (h poolHost) Plan(ctx context.Context, template string, limits sandbox.Limits) (*pool.Plan, error) {
	m := h.m
	if err := checkCPUs(limits); err != nil {
		return nil, err
	}
	is, err := choose("", false, m.o.Boundaries)
	if err != nil {
		return nil, err
	}
	root, err := m.o.Templates.Resolve(ctx, template, defaultUser)
	if root.Release != nil {
		defer root.Release()
	}
	if err != nil {
		return nil, err
	}
	plan := &pool.Plan{}
	req := wire.Create{
		Boundary: is.Effective, Root: root.Root, User: root.User, Guest: m.o.Guest,
		Limits: limits.Merge(m.o.Defaults), Explicit: explicit(limits),
		Hello: guest.Hello{Hostname: parkedHostname},
	}
	req.Hello.Limits = guestLimits(req.Limits)
	if root.Template.Start != "" && m.o.Prepared != nil {
		id, _, err := m.preparedImage(ctx, root.Template, sandbox.Spec{Template: template, Limits: limits})
		if err != nil {
			return nil, err
		}
		plan.Image, req.Image = string(id), m.o.Prepared.Path(id)
	}
	plan.Key, plan.Request = m.poolKey(&req, root.Template), req
	return plan, nil
}

func (m *Manager) poolKey(req *wire.Create, t sandbox.Template) pool.Key {
	return pool.Key{
		Boundary: req.Boundary, Build: m.o.Build, Template: pool.Identify(t), Root: pool.RootKey(req.Root),
		Limits: req.Limits, Explicit: req.Explicit,
	}
}

// Slot gives a place of creates away, unless it is the last one or somebody
// waits for it. Who asks urgently needs none.
func (h poolHost) Slot(urgent bool) (release func(), ok bool) {
	m := h.m
	if urgent {
		return func() {}, true
	}
	m.mu.Lock()
	waiting := m.queued > 0
	m.mu.Unlock()
	if waiting {
		return nil, false
	}
	select {
	case m.creates <- struct{}{}:
	default:
		return nil, false
	}
	if len(m.creates) == cap(m.creates) {
		<-m.creates
		return nil, false
	}
	return m.leave, true
}

// leave gives the place of a create back.
func (m *Manager) leave() {
	<-m.creates
	if m.pool != nil {
		m.pool.Wake()
	}
}

func (h poolHost) Acquire(ctx context.Context) (pool.Keeper, error) {
	return h.m.o.Keepers.Acquire(ctx, h.m.load)
}

func (h poolHost) Discard(ctx context.Context, k pool.Keeper, id sandbox.ID) error {
	return h.m.removeFrom(ctx, k.(Keeper), k.Name(), id)
}

func (h poolHost) Crash(point string) { h.m.crash(point) }

// SetPool sets the size of a pool. A size beyond the host's memory is
// [sandbox.ResourceExhausted].
func (m *Manager) SetPool(ctx context.Context, s sandbox.PoolSpec) (sandbox.Pool, error) {
	if m.pool == nil {
		return sandbox.Pool{}, errNoPool()
	}
	return m.pool.Set(ctx, s)
}

// RemovePool takes the pools of a template away, whatever their limits. It
// returns when nothing of them is left.
func (m *Manager) RemovePool(ctx context.Context, template string) error {
	if m.pool == nil {
		return errNoPool()
	}
	return m.pool.Remove(ctx, template)
}

// Pools tells where every pool stands.
func (m *Manager) Pools() []sandbox.Pool {
	if m.pool == nil {
		return nil
	}
	return m.pool.List()
}

func errNoPool() error {
	return sandbox.Errorf(sandbox.Unsupported, "pools are kept by a daemon only").WithHint("`belljar pool set` starts it")
}

// claimable tells whether a sandbox of the template may be claimed, as far as
// can be said without looking closer.
func (m *Manager) claimable(template string, mounts int) bool {
	return m.pool != nil && mounts == 0 && m.pool.Has(template)
}

// claim has e served by a sandbox that waits, if there is one like it: of
// several, one after another. Nil without an error: there is none.
func (m *Manager) claim(ctx context.Context, e *entry, req *wire.Create, l *launching) (*launched, error) {
	template := e.snapshot().Template
	if m.pool == nil || len(req.Mounts) > 0 || req.Files != "" || !m.pool.Of(template) {
		return nil, nil // mounts and files are given as a kernel boots
	}
	if err := l.resolveNow(ctx, req); err != nil {
		return nil, err
	}
	if l.template.Name == "" {
		return nil, nil // nobody can say what the root is of
	}
	want := pool.Want{
		Key: m.poolKey(req, l.template), Name: template, Restore: req.Image != "", Image: l.image,
	}
	for first := true; ; first = false {
		p := m.pool.Take(want, first)
		if p == nil {
			return nil, nil
		}
		out, err := m.claimOne(ctx, e, req, l, p)
		if err == nil {
			return out, nil
		}
		m.pool.Discard(p)
		if ctx.Err() != nil || want.Restore && misfit(err) {
			return nil, err
		}
		m.log.Warn("a sandbox that waited could not be claimed", "sandbox", e.id, "parked", p.ID, "err", err, "cause", sandbox.AsError(err).Unwrap())
		// The keeper may have it under its new name, which the next one gets.
		if cerr := m.giveBackSoon(ctx, e); cerr != nil {
			return nil, errors.Join(sandbox.AsError(cerr), err)
		}
	}
}

// How often, and how long after one another, it is tried to give back what could
// not be claimed: a keeper that is being killed answers no more a moment before
// its lock says that it is dead.
const (
	dyingTries = 100
	dyingPause = 20 * time.Millisecond
)

// giveBackSoon is giveBack from a keeper that may be dying.
func (m *Manager) giveBackSoon(ctx context.Context, e *entry) (err error) {
	for range dyingTries {
		if err = m.giveBack(ctx, e); sandbox.KindOf(err) != sandbox.Unavailable || !pauseFor(ctx, dyingPause) {
			return err
		}
	}
	return err
}

// misfit reports whether a driver has refused an image because this host is not
// as it was, a file of the template for instance: every other sandbox that waits
// would refuse it, too. A sandbox that cannot be claimed is named by its ID.
func misfit(err error) bool {
	e := sandbox.AsError(err)
	return e != nil && e.Kind == sandbox.Conflict && e.Field != "" && e.Field != "id"
}

// claimOne has the keeper of p give it the name of e.
func (m *Manager) claimOne(ctx context.Context, e *entry, req *wire.Create, l *launching, p *pool.Entry) (*launched, error) {
	k := p.Keeper.(Keeper)
	began := time.Now()
	if err := m.assign(e, k, l); err != nil {
		return nil, err
	}
	m.crash(CrashClaimAssigned)
	defer m.crashDuring(CrashClaimSent, time.Millisecond)()
	c := &wire.Claim{
		As: req.ID, Root: req.Root, Guest: req.Guest, Limits: req.Limits, Explicit: req.Explicit,
		Hello: req.Hello, Image: req.Image,
	}
	origin := sandbox.OriginBooted
	if p.How == wire.Ready {
		origin, c.Image = sandbox.OriginReady, ""
	}
	sent := time.Now()
	made, err := k.Claim(ctx, p.ID, c)
	if err != nil {
		return nil, err
	}
	m.crash(CrashClaimed)
	out, err := m.answered(made, req)
	if err != nil {
		return nil, err
	}
	out.origin = origin
	for _, s := range made.Timeline {
		l.tell("keeper: "+s.Name, sent.Add(s.Start), s.Took)
	}
	l.tell("claim "+string(origin), began, time.Since(began))
	return out, nil
}

// checkCPUs refuses what this host has not got.
func checkCPUs(l sandbox.Limits) error {
	n := runtime.NumCPU()
	if l.CPUs <= float64(n) {
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, "this host has %d processors", n).
		WithField("cpus", strconv.FormatFloat(l.CPUs, 'g', -1, 64)).WithHint("ask for %d or less, or leave it out", n)
}

func explicit(l sandbox.Limits) driver.Explicit {
	return driver.Explicit{
		CPUs: l.CPUs != 0, Memory: l.MemoryBytes != 0, Processes: l.Processes != 0,
		Disk: l.DiskBytes != 0, OpenFiles: l.OpenFiles != 0,
	}
}
