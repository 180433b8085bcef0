package template

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/sandbox"
)

// Names inside the store's directory and a template's.
const (
	lockName   = ".lock"
	hostDir    = ".host"
	tempPrefix = ".tmp-"
	recordName = "template.json"
	rootName   = "root"
	holdsName  = "holds"
)

// Store is the directory of templates.
type Store struct {
	dir string
	o   Options
}

// Options are choices of the installation.
type Options struct {
	Host HostOptions
}

// New returns the store in dir, which is made when something is put into it.
func New(dir string, o Options) *Store {
	return &Store{dir: dir, o: o}
}

// lock opens the store's lock, making the directory when it is missing, and
// takes it. Close lets it go. It waits in the kernel: whoever holds it does so
// for moments only.
func (s *Store) lock(ctx context.Context, how int) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := config.Private(s.dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, storeError("open", err)
	}
	if err := flock(f, how); err != nil {
		f.Close()
		return nil, storeError("lock", err)
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// storeError is a failure of our own directory.
func storeError(op string, err error) error {
	if own := (*sandbox.Error)(nil); errors.As(err, &own) {
		return own
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return noSpace(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the template store: %s: %w", op, err)
}

// noSpace says which directory lies on the full disk, when the error tells.
func noSpace(err error) error {
	e := sandbox.Errorf(sandbox.ResourceExhausted, "the disk of Belljar's state is full").WithCause(err)
	var path *fs.PathError
	var link *os.LinkError
	at := ""
	switch {
	case errors.As(err, &path):
		at = path.Path
	case errors.As(err, &link):
		at = link.New
	}
	if filepath.IsAbs(at) {
		store, _, _ := strings.Cut(at, "/"+tempPrefix) // what lies below is gone by now
		if store == at {
			store = filepath.Dir(at)
		}
		e = e.WithField("directory", store)
	}
	return e.WithHint("free space there, or set %s to a directory on another disk", config.EnvState)
}

// work is a directory in the store in which something is made. Its lock tells
// other processes that its maker lives.
type work struct {
	store *Store
	dir   *os.File // of the store
	f     *os.File // of the work, locked
	name  string
}

func (w *work) path(parts ...string) string {
	return filepath.Join(append([]string{w.store.dir, w.name}, parts...)...)
}

// begin makes a work directory, after it has removed those of the dead.
func (s *Store) begin(ctx context.Context) (*work, error) {
	l, err := s.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, storeError("open", err)
	}
	s.sweep(dir)
	w := &work{store: s, dir: dir, name: tempPrefix + rand.Text()}
	if err := os.Mkdir(w.path(), 0o700); err != nil {
		dir.Close()
		return nil, storeError("mkdir", err)
	}
	if w.f, err = os.Open(w.path()); err == nil {
		err = flock(w.f, unix.LOCK_EX)
	}
	if err != nil {
		w.end()
		return nil, storeError("lock", err)
	}
	return w, nil
}

// sweep removes the work of processes that are gone. The store's lock is held
// exclusively, so nobody is between making a directory and locking it.
func (s *Store) sweep(dir *os.File) {
	names, err := readNames(s.dir)
	if err != nil {
		return // whatever is wrong shows in the next step
	}
	for _, n := range names {
		if !strings.HasPrefix(n, tempPrefix) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(s.dir, n), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil {
			archive.Remove(dir, n) // tried again next time
		}
		f.Close()
	}
}

// commit syncs the work and gives it its name.
func (w *work) commit(ctx context.Context, name string) error {
	l, err := w.store.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.Close()
	return archive.Commit(w.dir, w.name, name)
}

// end removes the work, unless it was committed.
func (w *work) end() {
	archive.Remove(w.dir, w.name) // what stays is swept by the next
	if w.f != nil {
		w.f.Close()
	}
	w.dir.Close()
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
