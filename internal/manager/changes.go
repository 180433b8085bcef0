package manager

import (
	"context"
	"io"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/sandbox"
)

// Changes streams the list of what a sandbox has changed in its root since its
// template: the guest kernel's bytes, in the form that package filetree reads. One
// that is paused with files alone stays so; one that is paused with its memory is
// resumed.
func (m *Manager) Changes(ctx context.Context, ref string) (io.ReadCloser, error) {
	e, err := m.find(ref)
	if err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		list, err := m.listed(ctx, e)
		if list != nil || err != nil {
			return list, err
		}
		if err := m.awake(ctx, e); err != nil {
			return nil, err
		}
		e.mu.Lock()
		k, life := e.keeper, e.life
		e.mu.Unlock()
		if k == nil {
			continue // paused again
		}
		out, err := k.Changes(ctx, e.id)
		if err == nil {
			return out, nil
		}
		e.mu.Lock()
		again := e.life != life || e.rec.Sandbox.State == sandbox.Pausing
		e.mu.Unlock()
		if !again {
			return nil, err
		}
	}
	return nil, canceled(ctx)
}

// listed opens the list in the image of a sandbox that is paused with files
// alone. Nil without an error: it is not.
func (m *Manager) listed(ctx context.Context, e *entry) (io.ReadCloser, error) {
	sb := e.snapshot()
	if sb.State != sandbox.Paused || sb.PausedKind != sandbox.KindFiles {
		return nil, nil
	}
	f, err := filesum.Open(filepath.Join(m.images.Path(e.id), driver.TreeName))
	switch {
	case err == nil:
		return f, nil
	case e.snapshot().State != sandbox.Paused || ctx.Err() != nil:
		return nil, nil // it has just been resumed
	}
	return nil, sandbox.Errorf(sandbox.Internal, "the image's list of files cannot be opened: %w", err).WithField("id", string(e.id))
}
