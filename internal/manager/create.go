package manager

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/internal/daemon/fdpass"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Start is the first process of a sandbox, or a further one.
type Start struct {
	guest.Start
	Capture bool // keep the output for logs
}

// Created is a sandbox that has answered.
type Created struct {
	Sandbox    sandbox.Sandbox
	Process    *guest.Process
	StartError *sandbox.Error
}

// defaultUser is the user of a spec that names none.
const defaultUser = "user"

// cleanupTime bounds the giving back after a failed create.
const cleanupTime = 60 * time.Second

// Create makes a sandbox and returns when its guest has answered. When it
// fails, or ctx ends before, nothing is left.
func (m *Manager) Create(ctx context.Context, spec sandbox.Spec, start *Start) (Created, error) {
	c := &create{m: m, spec: spec, start: start, began: time.Now()}
	return c.make(ctx)
}

func (c *create) make(ctx context.Context) (Created, error) {
	m, spec := c.m, c.spec
	if err := c.check(); err != nil {
		return Created{}, err
	}
	if err := c.open(ctx); err != nil {
		return Created{}, err
	}
	if c.from != nil {
		defer c.from.release()
	}
	// What is only claimed needs no place among those that boot.
	if c.admitted = c.from != nil || !m.claimable(c.template(), len(spec.Mounts)); c.admitted {
		release, err := m.admit(ctx)
		if err != nil {
			return Created{}, err
		}
		defer release()
	}
	return c.run(ctx)
}

// admit waits for one of the places of creates at work.
func (m *Manager) admit(ctx context.Context) (release func(), err error) {
	m.mu.Lock()
	full := m.queued >= maxQueued
	if !full {
		m.queued++
	}
	m.mu.Unlock()
	if full {
		return nil, sandbox.Errorf(sandbox.Unavailable, "%d creates are waiting already", maxQueued).WithHint("try again in a moment")
	}
	defer func() {
		m.mu.Lock()
		m.queued--
		m.mu.Unlock()
	}()
	select {
	case m.creates <- struct{}{}:
		return m.leave, nil
	case <-ctx.Done():
		return nil, canceled(ctx)
	}
}

// create is one create on its way.
type create struct {
	m     *Manager
	spec  sandbox.Spec
	start *Start
	from  *source // nil: it starts from its template
	// preparing tells that the sandbox is there for its template's image.
	preparing bool
	began     time.Time

	admitted bool // has a place among the creates at work

	e     *entry
	files []*os.File
	steps []sandbox.Step
}

// check is everything that can be said before anything is reserved.
func (c *create) check() error {
	if err := c.spec.Validate(); err != nil {
		return err
	}
	if err := checkCPUs(c.spec.Limits); err != nil {
		return err
	}
	for k := range c.spec.Labels {
		if err := sandbox.CheckName("label", k); err != nil {
			return err
		}
	}
	if c.start == nil && c.spec.AutoRemove {
		return sandbox.Errorf(sandbox.Invalid, "a sandbox goes with the end of its first command only when it has one").
			WithField("auto_remove", "true").WithHint("name a command, or bound its life with a timeout")
	}
	if c.spec.OnTimeout == sandbox.OnTimeoutPause {
		if err := c.m.pausable(c.spec.Mounts); err != nil {
			return err
		}
	}
	if c.start != nil {
		if err := c.start.check(); err != nil {
			return err
		}
		if c.start.Capture && c.m.o.LogDir == "" {
			return errNoCapture()
		}
	}
	return nil
}

func (c *create) template() string { return cmp.Or(c.spec.Template, sandbox.DefaultTemplate) }

// record fills the defaults in.
func (c *create) record() (Record, error) {
	is, err := choose(c.spec.Boundary, c.spec.AllowWeaker, c.m.o.Boundaries)
	if err != nil {
		return Record{}, err
	}
	pick := func(v, def string) string {
		if v == "" {
			return def
		}
		return v
	}
	id := sandbox.NewID()
	var command *sandbox.Command
	if c.start != nil {
		command = sandbox.NewCommand(c.start.ID, slices.Clone(c.start.Argv))
	}
	r := Record{
		Preparing: c.preparing,
		Limits:    c.spec.Limits.Merge(c.m.o.Defaults),
		Explicit:  explicit(c.spec.Limits),
		Env:       maps.Clone(c.spec.Env),
		Sandbox: sandbox.Sandbox{
			ID:         id,
			Name:       c.spec.Name,
			Template:   c.template(),
			State:      sandbox.Creating,
			Isolation:  is,
			Limits:     []sandbox.LimitStatus{},
			User:       pick(c.spec.User, defaultUser),
			Workdir:    c.spec.Workdir,
			Hostname:   pick(c.spec.Hostname, pick(hostname(c.spec.Name), string(id[:hostnameLength]))),
			Mounts:     slices.Clone(c.spec.Mounts),
			CreatedAt:  c.began.Round(0),
			Labels:     maps.Clone(c.spec.Labels),
			Command:    command,
			AutoRemove: c.spec.AutoRemove,
			OnTimeout:  c.spec.OnTimeout,
		},
	}
	if c.start != nil {
		r.Linger = c.start.Lease
	}
	if c.from != nil {
		r.Limits = c.spec.Limits // the rest is the image's
		c.from.inherit(&r)
	}
	return r, nil
}

// image names the image that ready sandboxes of a pool may have been restored
// from already.
func (c *create) image() string {
	if c.from == nil {
		return ""
	}
	return string(c.from.prepared)
}

// generation is the sandbox's first: one that starts from an image goes on
// counting where that was saved.
func (c *create) generation() uint64 {
	if c.from != nil {
		return c.from.manifest.Generation + 1
	}
	return 1
}

// hostnameLength is how much of its ID a sandbox without a name is called by.
const hostnameLength = 12

// hostname makes of a name what a host may be called: "" when it cannot.
func hostname(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c == '_' || c == '.' {
			b[i] = '-'
		}
	}
	return string(b)
}

func (c *create) run(ctx context.Context) (Created, error) {
	rec, err := c.record()
	if err != nil {
		return Created{}, err
	}
	if c.files, err = c.m.tickets.take(c.spec.Mounts); err != nil {
		return Created{}, err
	}
	defer fdpass.Close(c.files)
	c.e = c.m.newEntry(rec)
	if err := c.m.reserve(c.e); err != nil {
		return Created{}, err
	}
	// A kill ends the create first.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.e.mu.Lock()
	c.e.stop = cancel
	c.e.mu.Unlock()
	defer close(c.e.created)

	out, err := c.build(ctx)
	if err != nil {
		return Created{}, c.undo(ctx, err)
	}
	return out, nil
}

// build goes through the steps of doc.go.
func (c *create) build(ctx context.Context) (Created, error) {
	m, e := c.m, c.e
	intent := []sandbox.Event{{Kind: sandbox.EventState, State: sandbox.Creating, Message: "asked for"}}
	if c.admitted { // else it is likely that nothing is acquired
		if err := m.update(e, func(*Record) ([]sandbox.Event, error) { return intent, nil }); err != nil {
			return Created{}, err
		}
		intent = nil
		m.crash(CrashCreateJournalled)
	}

	sb := e.snapshot()
	made, err := m.launch(ctx, e, c.request(), launching{
		resolve:    func(ctx context.Context) (Resolved, error) { return m.o.Templates.Resolve(ctx, sb.Template, sb.User) },
		files:      c.files,
		assigned:   func(r *Record) { r.Sandbox.Generation = c.generation() },
		step:       c.step,
		waits:      !c.admitted,
		image:      c.image(),
		intent:     intent,
		atAcquired: CrashCreateAcquired, atAssigned: CrashCreateAssigned, atSent: CrashCreateSent,
	})
	if err != nil {
		return Created{}, err
	}
	m.crash(CrashCreateCreated)
	return c.finish(made)
}

func (c *create) step(name string, began time.Time, took time.Duration) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.steps = append(c.steps, sandbox.Step{Name: name, Start: began.Sub(c.began), Took: took})
}

// request is what the keeper is asked.
func (c *create) request() *wire.Create {
	r := c.e.rec // nobody else writes it while Creating
	req := &wire.Create{
		ID: r.Sandbox.ID, Boundary: r.Sandbox.Isolation.Effective,
		Guest:  c.m.o.Guest,
		Limits: r.Limits, Explicit: r.Explicit,
		Hello: c.m.hello(&r, c.generation()),
	}
	for _, mount := range c.spec.Mounts {
		req.Mounts = append(req.Mounts, wire.Mount{Target: mount.Target, ReadOnly: mount.ReadOnly})
	}
	if c.from != nil {
		setImage(req, c.from.manifest.Kind, c.from.dir)
	}
	if c.start != nil {
		req.Hello.Start = &c.start.Start
	}
	return req
}

// finish makes the sandbox Running.
func (c *create) finish(made *launched) (Created, error) {
	m, e := c.m, c.e
	limits := append(slices.Clone(made.Limits), c.guestLimits(made.Limits)...)
	out := Created{Process: made.Reply.Process, StartError: made.Reply.StartError}
	err := m.move(e, sandbox.Running, answeredAs(made.origin), func(r *Record) {
		r.Sandbox.Origin = made.origin
		r.Sandbox.Restore = made.Restore
		r.Sandbox.Limits = limits
		r.Sandbox.CPUsSeen = made.CPUsSeen
		r.Sandbox.StartedAt = made.StartedAt
		r.Sandbox.Timeline = c.steps
		if c.spec.Timeout > 0 {
			r.setDeadline(c.spec.Timeout)
		}
		if c.start != nil && c.start.Capture && out.Process != nil {
			r.Captured = append(slices.Clone(r.Captured), c.start.ID)
		}
		if out.StartError != nil {
			r.endCommand(failedCommand(out.StartError))
		}
	})
	if err != nil {
		return Created{}, err
	}
	m.crash(CrashCreateRunning)
	m.noteHooks(e, made)
	m.arm(e)
	m.spawn(func() { m.follow(e) })
	if c.from != nil {
		for _, id := range c.from.manifest.Captured {
			m.recapture(e, id)
		}
	}
	if c.start != nil && c.start.Capture && out.Process != nil {
		m.capture(e, *out.Process)
	}
	if e.snapshot().AutoRemove {
		if out.StartError != nil {
			m.autoRemove(m.ctx, e)
		} else {
			m.watchCommand(e)
		}
	}
	out.Sandbox = e.snapshot()
	return out, nil
}

// guestLimits tells of the limits that the guest holds and the driver did not
// speak of.
func (c *create) guestLimits(spoken []sandbox.LimitStatus) (out []sandbox.LimitStatus) {
	l, asked := c.e.rec.Limits, c.spec.Limits
	if c.from != nil && c.from.manifest.Kind == sandbox.KindMemory {
		asked.OpenFiles = 0
		if c.from.manifest.Explicit.OpenFiles {
			asked.OpenFiles = l.OpenFiles
		}
	}
	for _, s := range []sandbox.LimitStatus{
		{Name: sandbox.LimitProcesses, Value: count(l.Processes), Explicit: asked.Processes != 0, Enforced: true, By: "the guest"},
		{Name: sandbox.LimitOpenFiles, Value: count(l.OpenFiles), Explicit: asked.OpenFiles != 0, Enforced: true, By: "the guest, RLIMIT_NOFILE"},
		{Name: sandbox.LimitOutput, Value: count(l.OutputBytes) + " bytes", Explicit: asked.OutputBytes != 0, Enforced: true, By: "the guest's buffers"},
	} {
		if !slices.ContainsFunc(spoken, func(o sandbox.LimitStatus) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// undo gives everything back after err and returns what the caller is told.
func (c *create) undo(ctx context.Context, err error) error {
	m, e := c.m, c.e
	if ctx.Err() != nil {
		if err = context.Cause(ctx); sandbox.KindOf(err) == sandbox.Internal {
			err = canceled(ctx)
		}
	}
	reason := sandbox.EndFailed
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if _, kerr := m.bury(clean, e, reason, "not created: "+sandbox.AsError(err).Message); kerr != nil {
		m.log.Error("a failed create has left something, which is tried again", "sandbox", e.id, "err", kerr)
	}
	m.log.Info("a sandbox was not created", "sandbox", e.id, "err", err, "cause", sandbox.AsError(err).Unwrap())
	return err
}
