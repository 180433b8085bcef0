package manager

import (
	"context"
	"io"

	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// VerifySnapshot compares every byte of a snapshot with its manifest.
func (m *Manager) VerifySnapshot(ref string) (sandbox.Snapshot, error) {
	s, err := m.borrow(ref, true)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	defer m.giveSnap(s)
	return m.snaps.view(s), nil
}

// SaveSnapshot returns what writes a snapshot as one stream, and what must be
// called when that is over. One whose memory knows files of this host is refused:
// elsewhere, or later, it could not be restored.
func (m *Manager) SaveSnapshot(ref string) (write func(ctx context.Context, w io.Writer) error, release func(), err error) {
	s, err := m.borrow(ref, false)
	if err != nil {
		return nil, nil, err
	}
	if s.manifest.Kind == sandbox.KindMemory && s.manifest.Template.HostBacked {
		m.giveSnap(s)
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "the snapshot's memory knows files of this host: its template is %s", s.manifest.Template.Name).
			WithField("snapshot", ref).
			WithHint("snapshots of an imported or built template can be carried elsewhere; of this one `belljar cp` takes files out")
	}
	write = func(ctx context.Context, w io.Writer) error { return m.o.Snapshots.WriteArchive(ctx, w, s.id) }
	return write, func() { m.giveSnap(s) }, nil
}

// LoadSnapshot makes a snapshot of a stream that SaveSnapshot wrote, here or
// elsewhere, and gives it a name unless that is empty. Every byte is checked
// first. Memory that another installation has saved is refused: it would be read
// by a kernel of ours. When it fails nothing is left.
func (m *Manager) LoadSnapshot(ctx context.Context, r io.Reader, name string) (sandbox.Snapshot, error) {
	if m.o.Snapshots == nil {
		return sandbox.Snapshot{}, errNoSnapshots()
	}
	s := &snap{}
	if name != "" {
		full, err := sandbox.SnapshotName(name)
		if err != nil {
			return sandbox.Snapshot{}, err
		}
		s.names = []string{full}
	}
	reserved, release := false, func() {}
	defer func() { release() }()
	manifest, err := m.o.Snapshots.ReadArchive(ctx, r, func(f *image.Manifest) error {
		if err := m.acceptable(f); err != nil {
			return err
		}
		free, err := m.roomFor(ctx, f.Bytes(), true)
		if err != nil {
			return err
		}
		release = free
		s.id = f.Snapshot
		reserved = true
		if err := m.snaps.reserve(s); err != nil {
			reserved = false
			return err
		}
		return nil
	})
	if err == nil {
		t := &taking{m: m, s: s, manifest: manifest}
		if err = t.publish(); err != nil {
			if rerr := m.o.Snapshots.Remove(s.id); rerr != nil {
				m.log.Warn("a snapshot that was not loaded has left something", "snapshot", s.id, "err", rerr)
			}
		}
	}
	if err != nil {
		if reserved {
			m.snaps.forget(s)
		}
		return sandbox.Snapshot{}, err
	}
	return m.snaps.view(s), nil
}

// acceptable tells whether an image that came from elsewhere may be kept here. Of
// another installation's it makes one of ours, under an ID of its own.
func (m *Manager) acceptable(f *image.Manifest) error {
	if f.SignedBy(m.o.Snapshots.Key()) {
		if f.Snapshot == "" {
			return sandbox.Errorf(sandbox.Invalid, "this is the image of a paused sandbox and no snapshot").WithField("archive", string(f.Sandbox))
		}
		if why := m.foreign(f); why != "" {
			return sandbox.Errorf(sandbox.Conflict, "the snapshot cannot be used here: %s", why).WithField("build", f.Build).
				WithHint("install that build to load it")
		}
		return nil
	}
	if f.Kind == sandbox.KindMemory {
		return sandbox.Errorf(sandbox.Denied, "the snapshot's memory was saved by another installation").WithField("archive", string(f.ID())).
			WithHint("memory is restored where it was saved only; elsewhere take files: `belljar snapshot create --memory=false` or --dir")
	}
	f.Snapshot, f.Sandbox, f.Generation = sandbox.NewID(), sandbox.NewID(), 1
	f.Env, f.Command, f.Captured = nil, nil, nil // of processes that ended elsewhere
	return nil
}
