package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Reap gives back everything that a dead keeper left and removes its
// directory. It refuses (Conflict, [ErrHeld]) while a keeper or another reaper
// holds the lock. It is idempotent: a directory that is gone is success, and
// one whose reaper was killed can be reaped again. What could not be reaped
// stays, with its handle, and is told in the error.
func Reap(ctx context.Context, dir string, drivers []driver.Driver) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := TryLock(dir)
	if sandbox.KindOf(err) == sandbox.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return reapLocked(ctx, dir, drivers)
}

func reapLocked(ctx context.Context, dir string, drivers []driver.Driver) error {
	entries, err := os.ReadDir(filepath.Join(dir, sandboxesDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return sandbox.Errorf(sandbox.Internal, "cannot list sandboxes: %w", err).WithField("dir", dir)
	}
	var errs []error
	for _, e := range entries {
		if err := reapSandbox(ctx, filepath.Join(dir, sandboxesDir, e.Name()), drivers); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return sandbox.Errorf(sandbox.Internal, "%d of %d sandboxes could not be reaped: %v", len(errs), len(entries), errs[0]).
			WithField("dir", dir).WithCause(errors.Join(errs...))
	}
	return removeKeeperDir(dir)
}

// reapSandbox reaps what one handle names. Without a handle nothing has been
// acquired: it is written before Create.
func reapSandbox(ctx context.Context, dir string, drivers []driver.Driver) error {
	b, err := os.ReadFile(filepath.Join(dir, handleName))
	if errors.Is(err, os.ErrNotExist) {
		return removeTree(dir)
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot read a handle: %w", err).WithField("dir", dir)
	}
	var h driver.Handle
	if err := json.Unmarshal(b, &h); err != nil {
		return sandbox.Errorf(sandbox.Internal, "a handle cannot be understood: %w", err).WithField("dir", dir)
	}
	d, err := pick(drivers, h.Boundary)
	if err != nil {
		return err
	}
	if err := d.Reap(ctx, h); err != nil {
		return err
	}
	return removeTree(dir)
}

// removeKeeperDir removes the lock last: until then nobody else may begin.
func removeKeeperDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot list: %w", err).WithField("dir", dir)
	}
	for _, e := range entries {
		if e.Name() == LockName {
			continue
		}
		if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return removeTree(dir)
}

func pick(drivers []driver.Driver, b sandbox.Boundary) (driver.Driver, error) {
	for _, d := range drivers {
		if d.Boundary() == b {
			return d, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.Unsupported, "no driver for this boundary in this program").WithField("boundary", string(b))
}
