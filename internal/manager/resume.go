package manager

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// Resume has a paused sandbox go on where it was. It returns when the guest has
// answered; of several at once all return then, and a caller that goes away does
// not stop it. A sandbox that runs already is no error. When it fails the
// sandbox stays paused, and nothing of its image is lost.
func (m *Manager) Resume(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = m.awake(ctx, e)
	return e.snapshot(), err
}

// ResumeVerified is Resume once every byte of the image has been compared with
// its manifest. A sandbox that runs already, or that somebody else resumes, is a
// [sandbox.Conflict]: nothing could be said of its image.
func (m *Manager) ResumeVerified(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if m.images == nil {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Unsupported, "paused sandboxes are kept by a daemon only")
	}
	verified := false
	for ctx.Err() == nil {
		sb, changed := e.watch()
		if sb.State == sandbox.Pausing {
			if err := awaitChange(ctx, changed); err != nil {
				return sb, err
			}
			continue
		}
		done := make(chan bool, 1)
		_, err := m.work(ctx, e, workResume, func(ctx context.Context) error {
			if e.snapshot().State != sandbox.Paused {
				return nil
			}
			if _, err := m.images.Verify(e.id); err != nil {
				return err
			}
			done <- true
			return m.resumeNow(ctx, e)
		})
		select {
		case verified = <-done:
		default:
		}
		if err != nil || verified {
			return e.snapshot(), err
		}
		if s := e.snapshot().State; s != sandbox.Paused && s != sandbox.Pausing {
			return e.snapshot(), sandbox.Errorf(sandbox.Conflict, "the sandbox is %s: its image cannot be verified any more", s).
				WithField("sandbox", ref).WithHint("pause it and resume it with --verify=full alone")
		}
	}
	return sandbox.Sandbox{}, canceled(ctx)
}

// resumeNow takes the sandbox from Paused to Running.
func (m *Manager) resumeNow(ctx context.Context, e *entry) error {
	e.mu.Lock()
	r := e.rec
	e.mu.Unlock()
	if r.Sandbox.State != sandbox.Paused {
		return nil // another was faster; the caller looks again
	}
	if m.images == nil {
		return sandbox.Errorf(sandbox.Unsupported, "paused sandboxes are kept by a daemon only")
	}
	if err := m.restorable(ctx, &r); err != nil {
		return err
	}
	release, err := m.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	root, err := m.o.Templates.Resolve(ctx, r.Sandbox.Template, r.Sandbox.User)
	if root.Release != nil {
		defer root.Release()
	}
	if err != nil {
		return err
	}
	if err := m.move(e, sandbox.Resuming, "somebody needs it", nil); err != nil {
		return err
	}
	m.crash(CrashResumeBegun)
	bounded, cancel := context.WithTimeout(ctx, imageTime)
	made, err := m.restore(bounded, e, &r, root)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("a sandbox could not be resumed", "sandbox", e.id, "err", err, "cause", sandbox.AsError(err).Unwrap())
			m.settleResuming(ctx, e)
		}
		return err
	}
	m.crash(CrashResumeCreated)
	return m.resumed(ctx, e, made)
}

// restorable checks that the image is whole and that it can be restored by this
// installation as it is now.
func (m *Manager) restorable(ctx context.Context, r *Record) error {
	manifest, err := m.images.Open(r.Sandbox.ID)
	if err != nil {
		return err
	}
	if kind := cmp.Or(r.Sandbox.PausedKind, sandbox.KindMemory); manifest.Kind != kind {
		return sandbox.Errorf(sandbox.Conflict, "the image holds %s, and the sandbox was paused with its %s", manifest.Kind, kind).
			WithField("image", m.images.Path(r.Sandbox.ID)).WithHint("put the right image back, or kill the sandbox")
	}
	if manifest.Boundary != r.Sandbox.Isolation.Effective || manifest.Generation != r.Sandbox.Generation {
		return sandbox.Errorf(sandbox.Conflict, "the image is of generation %d behind %s, and the sandbox was paused in generation %d behind %s",
			manifest.Generation, manifest.Boundary, r.Sandbox.Generation, r.Sandbox.Isolation.Effective).
			WithField("image", m.images.Path(r.Sandbox.ID)).WithHint("put the right image back, or kill the sandbox")
	}
	return m.compatible(ctx, manifest)
}

func sameTemplate(then, now image.Template) error {
	switch {
	case then.Same(now):
		return nil
	case now.Kind == "":
		return sandbox.Errorf(sandbox.NotFound, "the template that the sandbox started from is gone").WithField("template", then.Name).
			WithHint("import it again as it was, or give the sandbox or snapshot up")
	}
	return sandbox.Errorf(sandbox.Conflict, "the template is another one than when the sandbox was saved").WithField("template", then.Name).
		WithHint("its memory knows files that are not there any more: give it up and make a new one")
}

// setImage names the image in a request, as what it is.
func setImage(req *wire.Create, kind sandbox.SnapshotKind, dir string) {
	if kind == sandbox.KindFiles {
		req.Files = dir
	} else {
		req.Image = dir
	}
}

// restore has a keeper make the sandbox from its image.
func (m *Manager) restore(ctx context.Context, e *entry, r *Record, root Resolved) (*launched, error) {
	req := &wire.Create{
		ID: e.id, Boundary: r.Sandbox.Isolation.Effective,
		Root: root.Root, Guest: m.o.Guest, User: root.User,
		Limits: r.Limits, Explicit: r.Explicit,
		Hello: m.hello(r, r.Sandbox.Generation+1),
	}
	setImage(req, r.Sandbox.PausedKind, m.images.Path(e.id))
	return m.launch(ctx, e, req, launching{template: root.Template, atSent: CrashResumeSent})
}

// resumed makes the sandbox Running. From then on its image is the past.
func (m *Manager) resumed(ctx context.Context, e *entry, made *launched) error {
	err := m.move(e, sandbox.Running, answeredAs(made.origin), func(r *Record) {
		r.Sandbox.Generation++
		r.Sandbox.Origin = made.origin
		r.Sandbox.Restore = made.Restore
		r.Sandbox.Limits = renewed(r.Sandbox.Limits, made.Limits)
		r.Sandbox.CPUsSeen = made.CPUsSeen
		r.awoken()
	})
	if err != nil {
		if ctx.Err() == nil {
			m.settleResuming(ctx, e)
		}
		return err
	}
	m.crash(CrashResumeDone)
	m.log.Info("a sandbox was resumed", "sandbox", e.id, "origin", made.origin, "steps", steps(made.Timeline))
	m.noteHooks(e, made)
	m.removeImage(e)
	m.goOn(e)
	return nil
}

// renewed returns what a driver says of limits now, and of those that it does
// not speak of what was known.
func renewed(known, now []sandbox.LimitStatus) []sandbox.LimitStatus {
	out := slices.Clone(now)
	for _, l := range known {
		if !slices.ContainsFunc(now, func(n sandbox.LimitStatus) bool { return n.Name == l.Name }) {
			out = append(out, l)
		}
	}
	return out
}

// awoken is what a record has no more once its sandbox runs again.
func (r *Record) awoken() {
	r.startClock()
	r.Sandbox.PausedAt, r.Sandbox.PausedKind, r.Sandbox.ImageBytes = time.Time{}, "", 0
}

// goOn takes up what a manager does for a running sandbox.
func (m *Manager) goOn(e *entry) {
	m.arm(e)
	m.spawn(func() { m.follow(e) })
	e.mu.Lock()
	captured := e.rec.Captured
	e.mu.Unlock()
	for _, id := range captured {
		m.recapture(e, id)
	}
	m.resumeCommand(e)
	m.spawn(func() { m.findLeases(e) })
}

func (m *Manager) removeImage(e *entry) {
	if m.images == nil {
		return
	}
	if err := m.images.Remove(e.id); err != nil {
		m.log.Warn("an image was not removed", "sandbox", e.id, "err", err)
	}
}
