package template

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

// Hold notes that the sandbox id, whose keeper holds the file lock for life,
// uses root, which came from [Store.Resolve]. It counts until [Store.Release]
// or until nobody holds the lock any more. A root that was removed since it was
// resolved is [sandbox.NotFound].
func (s *Store) Hold(ctx context.Context, root driver.Root, id sandbox.ID, lock string) error {
	dir, err := s.homeOf(root)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(lock) {
		return sandbox.Errorf(sandbox.Internal, "a keeper's lock is not an absolute path").WithField("lock", lock)
	}
	l, err := s.lock(ctx, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := os.Lstat(root.Path); err != nil {
		return notFound(filepath.Base(dir))
	}
	holds := filepath.Join(dir, holdsName)
	if err := os.Mkdir(holds, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return storeError("hold", err)
	}
	return storeErrorOrNil("hold", os.WriteFile(filepath.Join(holds, string(id)), []byte(lock), 0o600))
}

// Release ends a hold; one that is gone is no error.
func (s *Store) Release(ctx context.Context, root driver.Root, id sandbox.ID) error {
	dir, err := s.homeOf(root)
	if err != nil {
		return err
	}
	err = os.Remove(filepath.Join(dir, holdsName, string(id)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return storeErrorOrNil("release", err)
}

// holdPatterns match what may have holds, beneath the store's directory.
var holdPatterns = []string{"*", hostDir + "/*"}

// ReleaseID is [Store.Release] for whoever has forgotten the root.
func (s *Store) ReleaseID(ctx context.Context, id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err
	}
	for _, pattern := range holdPatterns {
		found, err := filepath.Glob(filepath.Join(s.dir, pattern, holdsName, string(id)))
		if err != nil {
			return storeError("release", err)
		}
		for _, f := range found {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return storeError("release", err)
			}
		}
	}
	return nil
}

// homeOf returns the directory in the store that root belongs to.
func (s *Store) homeOf(root driver.Root) (string, error) {
	dir := filepath.Dir(root.Path)
	rel, err := filepath.Rel(s.dir, dir)
	if err != nil || filepath.Base(root.Path) != rootName || strings.HasPrefix(rel, "..") {
		return "", sandbox.Errorf(sandbox.Internal, "the root is not one of this store's").WithField("root", root.Path)
	}
	return dir, nil
}

// holders returns the sandboxes that use the template in dir and removes holds
// whose keeper is gone.
func holders(dir string) ([]string, error) {
	holds := filepath.Join(dir, holdsName)
	names, err := readNames(holds)
	if err != nil {
		return nil, storeError("holds", err)
	}
	var out []string
	for _, n := range names {
		p := filepath.Join(holds, n)
		lock, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || len(lock) == 0 && !stale(p) || locked(string(lock)) {
			out = append(out, n)
			continue
		}
		os.Remove(p)
	}
	return out, nil
}

// unwrittenFor is how long a hold may be empty, between its making and its
// writing, before its maker counts as dead.
const unwrittenFor = time.Minute

func stale(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && time.Since(fi.ModTime()) > unwrittenFor
}

// Sweep removes the holds of sandboxes whose keeper is gone.
func (s *Store) Sweep(ctx context.Context) error {
	for _, pattern := range holdPatterns {
		found, err := filepath.Glob(filepath.Join(s.dir, pattern, holdsName))
		if err != nil {
			return storeError("sweep", err)
		}
		for _, holds := range found {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, err := holders(filepath.Dir(holds)); err != nil {
				return err
			}
		}
	}
	return nil
}

// locked reports whether somebody holds the lock at path. In doubt it does.
func locked(path string) bool {
	held, err := lifelock.Held(path)
	return held || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// Remove removes a template. One that a sandbox uses is a
// [sandbox.Conflict]; the host template cannot be removed.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := sandbox.CheckName("template", name); err != nil {
		return err
	}
	if name == KindHost {
		return sandbox.Errorf(sandbox.Invalid, "the host template is not stored and cannot be removed").WithField("template", name)
	}
	trash, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer trash.end()
	return s.discard(ctx, name, trash)
}

// discard moves the template into trash, where it is removed in peace.
func (s *Store) discard(ctx context.Context, name string, trash *work) error {
	l, err := s.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.Close()
	dir := filepath.Join(s.dir, name)
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return notFound(name)
	}
	users, err := holders(dir)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return sandbox.Errorf(sandbox.Conflict, "the template is in use by %d sandboxes, for instance %s", len(users), users[0]).
			WithField("template", name).WithHint("kill them first")
	}
	return storeErrorOrNil("remove", os.Rename(dir, trash.path(name)))
}
