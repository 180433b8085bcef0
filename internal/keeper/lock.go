package keeper

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

// Names inside a keeper's directory.
const (
	LockName     = "lock"
	OwnerName    = "owner.json"
	LogName      = "keeper.log"
	sandboxesDir = "sandboxes"
	handleName   = "handle.json"
	driverDir    = "driver"
)

// Owner tells who holds a keeper directory. It informs people; only the lock
// decides.
type Owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot, as in /proc/PID/stat
	Build string `json:"build"`
	Kind  string `json:"kind"` // "daemon" or "run"
}

// ErrHeld is the cause of the Conflict error for a directory that is in use.
var ErrHeld = lifelock.ErrHeld

// TryLock takes the lock of a keeper directory without waiting. The file holds
// it until it is closed by all who have it. A held lock gives a Conflict error
// with [ErrHeld] as cause; a directory that is gone gives NotFound.
func TryLock(dir string) (*os.File, error) {
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		kind := sandbox.Internal
		if errors.Is(err, os.ErrNotExist) {
			kind = sandbox.NotFound
		}
		return nil, sandbox.Errorf(kind, "cannot open the lock: %w", err).WithField("dir", dir)
	}
	if err := AdoptLock(f, dir); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// AdoptLock makes sure that f is the lock file of dir and that this process
// holds it, taking it when it is free.
func AdoptLock(f *os.File, dir string) error {
	err := lifelock.Take(f)
	if errors.Is(err, ErrHeld) {
		return sandbox.Errorf(sandbox.Conflict, "another process owns this keeper directory").WithField("dir", dir).WithCause(ErrHeld)
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot lock: %w", err).WithField("dir", dir)
	}
	// The file may have been removed, with its directory, before it was locked.
	mine, err1 := f.Stat()
	named, err2 := os.Lstat(filepath.Join(dir, LockName))
	if err1 != nil || err2 != nil || !os.SameFile(mine, named) {
		return sandbox.Errorf(sandbox.NotFound, "the keeper directory has been removed").WithField("dir", dir)
	}
	return nil
}

func writeOwner(dir, kind string) error {
	start, err := startTime(os.Getpid())
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(dir, OwnerName), Owner{
		PID: os.Getpid(), Start: start, Build: build.ID(), Kind: kind,
	})
}

// startTime returns when a process began, in ticks since boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Internal, "cannot read the start time of a process: %w", err)
	}
	// The command name, in parentheses, may hold anything.
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, sandbox.Errorf(sandbox.Internal, "cannot read the start time of a process")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// writeSynced writes v as JSON so that after a crash path holds either all of
// it or what was there before.
func writeSynced(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot encode %s: %w", filepath.Base(path), err)
	}
	if err := replaceFile(path, b); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot write %s: %w", filepath.Base(path), err).
			WithHint("is the file system of %s full or read-only?", filepath.Dir(path))
	}
	return nil
}

func replaceFile(path string, b []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
