package manager

import (
	"context"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// SnapshotOptions say what is kept of a sandbox, and under which name.
type SnapshotOptions struct {
	Name string               // NAME or NAME:TAG; empty: it has its ID alone
	Kind sandbox.SnapshotKind // empty: memory, or the directory that Dir names
	Dir  string               // absolute, inside
	User string               // whose rights in the sandbox Dir is read with; empty: its default
}

func (o *SnapshotOptions) check() error {
	if o.Kind == "" {
		o.Kind = sandbox.KindMemory
		if o.Dir != "" {
			o.Kind = sandbox.KindDirectory
		}
	}
	switch {
	case !o.Kind.Valid():
		return sandbox.Errorf(sandbox.Invalid, "a snapshot is of memory, files or a directory").WithField("kind", string(o.Kind))
	case (o.Kind == sandbox.KindDirectory) != (o.Dir != ""):
		return sandbox.Errorf(sandbox.Invalid, "a directory is named for a snapshot of one, and for no other").WithField("dir", o.Dir)
	case o.Dir != "":
		return sandbox.CheckPath("dir", o.Dir)
	}
	return nil
}

// Snapshot keeps what the options say of a sandbox as it is now. The sandbox goes
// on: it stands still while its memory or files are written, which is told, and
// not while those go to disk; it is at work while a directory is read. Of a paused
// one the image is taken as it is. It returns when a sandbox can start from the
// snapshot; a caller that goes away does not stop it. When it fails, nothing is
// left of it.
func (m *Manager) Snapshot(ctx context.Context, ref string, o SnapshotOptions) (sandbox.Snapshot, error) {
	if m.o.Snapshots == nil {
		return sandbox.Snapshot{}, errNoSnapshots()
	}
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	if err := o.check(); err != nil {
		return sandbox.Snapshot{}, err
	}
	t := &taking{m: m, e: e, s: &snap{id: sandbox.NewID()}, SnapshotOptions: o}
	if name := o.Name; name != "" {
		if name, err = sandbox.SnapshotName(name); err != nil {
			return sandbox.Snapshot{}, err
		}
		t.s.names = []string{name}
	}
	if err := m.snaps.reserve(t.s); err != nil {
		return sandbox.Snapshot{}, err
	}
	if !m.enter() {
		m.snaps.forget(t.s)
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.Unavailable, "the manager is ending")
	}
	done := make(chan error, 1)
	go func() {
		defer m.wg.Done()
		done <- t.run()
	}()
	select {
	case err := <-done:
		if err != nil {
			return sandbox.Snapshot{}, err
		}
		out := m.snaps.view(t.s)
		out.Stopped = t.stopped
		return out, nil
	case <-ctx.Done():
		return sandbox.Snapshot{}, canceled(ctx)
	}
}

func errNoSnapshots() *sandbox.Error {
	return sandbox.Errorf(sandbox.Unsupported, "snapshots are kept by a daemon only").
		WithHint("make the sandbox with `belljar create` or `belljar run -d`")
}

// taking is one snapshot on its way. What it has begun it takes away again
// unless it comes to its end.
type taking struct {
	m *Manager
	e *entry
	s *snap
	SnapshotOptions

	manifest *image.Manifest
	stopped  time.Duration
}

func (t *taking) run() error {
	m := t.m
	err := t.save(m.ctx)
	if err == nil {
		m.crash(CrashSnapshotSaved)
		err = t.publish()
	}
	if err != nil {
		m.snaps.forget(t.s)
		if rerr := m.o.Snapshots.Remove(t.s.id); rerr != nil {
			m.log.Warn("a snapshot that was not taken has left something", "snapshot", t.s.id, "err", rerr)
		}
		return err
	}
	m.crash(CrashSnapshotPublished)
	m.log.Info("a snapshot was taken", "sandbox", t.e.id, "snapshot", t.s.id, "stopped", t.stopped)
	return nil
}

// save has the image written, whatever the sandbox is at.
func (t *taking) save(ctx context.Context) error {
	if t.Kind == sandbox.KindDirectory {
		return t.directory(ctx)
	}
	return t.m.saving(ctx, t.e, t.live, t.paused)
}

// saving has the image of a sandbox written, by one function when it runs and by
// another when it is paused. Whichever is called runs as the sandbox's work, once.
func (m *Manager) saving(ctx context.Context, e *entry, live, paused func(ctx context.Context) error) error {
	for ctx.Err() == nil {
		sb, changed := e.watch()
		switch sb.State {
		case sandbox.Running, sandbox.Paused:
			act := live
			if sb.State == sandbox.Paused {
				act = paused
			}
			done := make(chan error, 1)
			_, err := m.work(ctx, e, workSave, func(ctx context.Context) error {
				if e.snapshot().State != sb.State {
					return nil // another was faster
				}
				err := act(ctx)
				done <- err
				return err
			})
			select {
			case err := <-done:
				return err
			default: // another's work: look again, unless nobody can work any more
				if sandbox.KindOf(err) == sandbox.Unavailable {
					return err
				}
			}
		case sandbox.Pausing, sandbox.Resuming:
			if err := awaitChange(ctx, changed); err != nil {
				return err
			}
		default:
			return notRunning(sb)
		}
	}
	return canceled(ctx)
}

// live has a running sandbox saved and go on.
func (t *taking) live(ctx context.Context) (err error) {
	release, err := t.m.room(ctx, t.e, t.Kind, true)
	if err != nil {
		return err
	}
	defer release()
	dir, err := t.m.o.Snapshots.Begin(t.s.id)
	if err != nil {
		return err
	}
	t.manifest, t.stopped, err = t.m.saveLive(ctx, t.e, dir, "a snapshot is being taken", t.Kind)
	return err
}

// paused takes the image of a paused sandbox: two names for the same files,
// which nobody ever writes to.
func (t *taking) paused(context.Context) error {
	m := t.m
	manifest, err := m.images.Open(t.e.id)
	if err != nil {
		return err
	}
	if manifest.Kind != t.Kind {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox is paused with %s, of which no snapshot of %s can be taken", manifest.Kind, t.Kind).
			WithField("kind", string(t.Kind)).WithHint("resume it first, or ask for a snapshot of %s", manifest.Kind)
	}
	t.manifest = manifest
	return m.o.Snapshots.Adopt(t.s.id, m.images.Path(t.e.id), manifest)
}

// publish makes a complete snapshot of an image that has been written.
func (t *taking) publish() error {
	store := t.m.o.Snapshots
	t.manifest.Snapshot = t.s.id
	if err := store.Seal(t.manifest); err != nil {
		return err
	}
	if err := store.SetNames(t.s.id, t.s.names); err != nil {
		return err
	}
	t.m.crash(CrashSnapshotSealed)
	if err := store.Publish(t.s.id); err != nil {
		return err
	}
	t.m.snaps.publish(t.s, t.manifest)
	return nil
}

// saveLive has the keeper write an image of a running sandbox, which then goes
// on under the next generation, and returns the manifest that belongs to it and
// how long the sandbox stood still. The image is not on disk yet. To others the
// sandbox is pausing meanwhile: what wants it waits.
func (m *Manager) saveLive(ctx context.Context, e *entry, dir, why string, kind sandbox.SnapshotKind) (*image.Manifest, time.Duration, error) {
	sb := e.snapshot()
	if err := m.savable(ctx, &sb, kind); err != nil {
		return nil, 0, err
	}
	template, err := m.template(ctx, sb.Template)
	if err != nil {
		return nil, 0, err
	}
	if err := m.move(e, sandbox.Pausing, why, func(r *Record) { r.stopClock() }); err != nil {
		return nil, 0, err
	}
	e.mu.Lock()
	manifest := m.manifest(&e.rec, template, kind)
	e.mu.Unlock()
	m.arm(e) // not Running: stops the timer
	m.crash(CrashSnapshotBegun)
	done, err := m.checkpoint(ctx, e, wire.Checkpoint{Dir: dir, Keep: true, Passing: true, FilesOnly: kind == sandbox.KindFiles})
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("a sandbox could not be saved", "sandbox", e.id, "err", err, "cause", sandbox.AsError(err).Unwrap())
			if rerr := image.Empty(dir); rerr != nil { // it may have filled the disk, and the journal needs some
				m.log.Warn("a sandbox's half image was not removed", "sandbox", e.id, "err", rerr)
			}
			m.settlePausing(ctx, e, sandbox.KindOf(err) != sandbox.Unavailable)
		}
		return nil, 0, err
	}
	m.crash(CrashSnapshotWritten)
	return manifest, done.Stopped, m.retrying(ctx, e, "a sandbox cannot go on yet", func() error {
		return m.unpause(e, done.Status, "it goes on")
	})
}

// savable tells what of a sandbox cannot be saved, before anything is done.
func (m *Manager) savable(ctx context.Context, sb *sandbox.Sandbox, kind sandbox.SnapshotKind) error {
	if err := m.pausable(sb.Mounts); err != nil {
		return err
	}
	can, err := m.canSave(ctx, sb.Isolation.Effective, kind)
	if err == nil && !can {
		err = sandbox.Errorf(sandbox.Unsupported, "this boundary cannot save a sandbox's %s here", kind).
			WithField("boundary", string(sb.Isolation.Effective)).WithHint("`belljar doctor` tells what each boundary can do")
	}
	return err
}
