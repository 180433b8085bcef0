package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

// unfinishedAge is how old a directory is before its maker counts as dead
// although it has not named it yet.
const unfinishedAge = time.Minute

// Reap has the engine reap what a dead keeper left in dir. A keeper or reaper
// that lives gives a Conflict error; a directory that is gone is success.
func Reap(ctx context.Context, dir string, o Options) error {
	lock, err := keeper.TryLock(dir)
	if sandbox.KindOf(err) == sandbox.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return reapLocked(ctx, dir, lock, o)
}

func reapLocked(ctx context.Context, dir string, lock *os.File, o Options) error {
	// Without a sandbox nothing but files was made, and no engine is needed.
	entries, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		if err := os.RemoveAll(dir); err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot remove: %w", err).WithField("dir", dir)
		}
		return nil
	}
	engine, err := enginePath(o.Engine)
	if err != nil {
		return err
	}
	s := &spawn{engine: engine, role: "reap", env: o.Env, args: []string{"--dir", dir}, log: filepath.Join(dir, keeper.LogName)}
	s.pass("lock", lock)
	status, err := s.start(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { s.cmd.Process.Kill() })
	defer stop()
	r := readReport(status)
	err = s.cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return sandbox.Errorf(sandbox.Canceled, "the reaper was given up").WithCause(ctx.Err())
	case r == nil:
		return s.died(err)
	case r.Error != nil:
		return r.Error
	}
	return nil
}

// ReapStale reaps every keeper directory beneath o.RuntimeDir whose keeper is
// dead, and touches no other. It costs one listing and one lock per living
// keeper when there is nothing to do. It goes on after an error and returns
// them all.
func ReapStale(ctx context.Context, o Options) error {
	parent := filepath.Join(o.RuntimeDir, keepersDir)
	entries, err := os.ReadDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "cannot list keepers: %w", err).WithField("dir", parent)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), newPrefix) && !old(e) {
			continue
		}
		err := Reap(ctx, filepath.Join(parent, e.Name()), o)
		if err != nil && !errors.Is(err, keeper.ErrHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func old(e os.DirEntry) bool {
	fi, err := e.Info()
	return err == nil && time.Since(fi.ModTime()) > unfinishedAge
}

// Living lists the names of the keepers beneath runtimeDir whose lock is held.
func Living(runtimeDir string) ([]string, error) {
	parent := filepath.Join(runtimeDir, keepersDir)
	entries, err := os.ReadDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "cannot list keepers: %w", err).WithField("dir", parent)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), newPrefix) && Alive(filepath.Join(parent, e.Name())) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Alive reports whether a keeper, or a reaper, holds the lock of dir.
func Alive(dir string) bool {
	held, err := lifelock.Held(filepath.Join(dir, keeper.LockName))
	return held && err == nil
}
