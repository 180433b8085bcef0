package manager

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/filesum"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// archiveName is the file of a snapshot of a directory: the guest's tar stream,
// as it came. Nothing here ever looks into it.
const archiveName = "archive.tar"

// directory has the guest write a directory into the snapshot. A paused sandbox
// is resumed for it, as for any other request for files.
func (t *taking) directory(ctx context.Context) error {
	m := t.m
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	release, err := m.roomFor(ctx, 0, true)
	if err != nil {
		return err
	}
	defer release()
	dir, err := m.o.Snapshots.Begin(t.s.id)
	if err != nil {
		return err
	}
	r := t.e.record()
	template, err := m.template(ctx, r.Sandbox.Template)
	if err != nil {
		return err
	}
	t.manifest = m.manifest(&r, template, sandbox.KindDirectory)
	t.manifest.Dir, t.manifest.Env, t.manifest.SavedAt = t.Dir, nil, time.Now().UTC().Round(0)
	f, err := os.OpenFile(filepath.Join(dir, archiveName), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "the snapshot cannot be written: %w", err)
	}
	defer f.Close()
	q := url.Values{"path": {t.Dir}}
	if t.User != "" {
		q.Set("user", t.User)
	}
	_, err = m.again(ctx, string(t.e.id), func(g *Guest) error {
		var at guest.Entry
		if err := g.JSON(ctx, http.MethodGet, "/stat", q, nil, &at); err != nil {
			return err
		}
		if at.Type != guest.TypeDir {
			return sandbox.Errorf(sandbox.Invalid, "this is no directory").WithField("dir", t.Dir).
				WithHint("`belljar cp` copies files")
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		resp, err := g.Do(ctx, Request{Method: http.MethodGet, Path: "/tar", Query: q})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return fill(f, resp.Body, archiveBound(r.Limits))
	})
	return err
}

// archiveBound is how many bytes the archive of a directory may have: what the
// sandbox can have written, as much of its template, and headers.
func archiveBound(l sandbox.Limits) int64 { return 2*l.DiskBytes + 1<<30 }

// fill copies a guest's stream of at most limit bytes into f.
func fill(f *os.File, r io.Reader, limit int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(r, limit+1), make([]byte, 1<<20))
	switch {
	case n > limit:
		return sandbox.Errorf(sandbox.ResourceExhausted, "the directory takes more than %d MiB", limit>>20).
			WithHint("choose a smaller one, or give the sandbox a larger disk")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return sandbox.Errorf(sandbox.ResourceExhausted, "there is no room for the snapshot").WithCause(err)
	case err != nil:
		return sandbox.Errorf(sandbox.Unavailable, "the guest broke its archive off").WithCause(err)
	}
	return nil
}

// SnapshotTar opens the archive of a snapshot of a directory. Its bytes are a
// guest's.
func (m *Manager) SnapshotTar(ref string) (io.ReadCloser, error) {
	if m.o.Snapshots == nil {
		return nil, errNoSnapshots()
	}
	s, err := m.borrow(ref, false)
	if err != nil {
		return nil, err
	}
	if s.manifest.Kind != sandbox.KindDirectory {
		m.giveSnap(s)
		return nil, sandbox.Errorf(sandbox.Invalid, "this is no snapshot of a directory: it holds %s", s.manifest.Kind).WithField("snapshot", ref).
			WithHint("start a sandbox from it and take a directory: `belljar snapshot create SANDBOX NAME --dir PATH`")
	}
	f, err := filesum.Open(filepath.Join(m.o.Snapshots.Path(s.id), archiveName))
	if err != nil {
		m.giveSnap(s)
		return nil, sandbox.Errorf(sandbox.Internal, "the snapshot cannot be opened: %w", err)
	}
	return &borrowed{f, func() { m.giveSnap(s) }}, nil
}

// borrowed is a file that keeps its snapshot from being removed.
type borrowed struct {
	*os.File
	release func()
}

// Close lets the snapshot go.
func (b *borrowed) Close() error {
	defer b.release()
	return b.File.Close()
}
