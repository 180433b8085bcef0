package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestRangeLock: no two sandboxes have a range in common, a range that was
// given up is free again, and children do not get the lock.
func TestRangeLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ids")
	id := sandbox.NewID()
	begin := time.Now()
	a, err := lockSlotIn(dir, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("one lock took %v", time.Since(begin))
	defer a.release()
	if flags, err := unix.FcntlInt(uintptr(a.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the lock are %#x, %v", flags, err)
	}
	b, err := lockSlotIn(dir, id)
	if err != nil {
		t.Fatal(err)
	}
	if a.slot == b.slot {
		t.Errorf("two sandboxes have range %d", a.slot)
	}
	again := b.slot
	b.release()
	if b, err = lockSlotIn(dir, id); err != nil {
		t.Fatal(err)
	}
	defer b.release()
	if b.slot != again {
		t.Errorf("range %d was not free again, got %d", again, b.slot)
	}
}

// TestRangeLockDir: a directory that another user could lock in is refused.
func TestRangeLockDir(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"open to others": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o711)) },
		"link":           func(p string) error { return os.Symlink(t.TempDir(), p) },
		"file":           func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"no parent":      func(p string) error { return os.Remove(filepath.Dir(p)) },
		"of another": func(p string) error {
			if os.Geteuid() != 0 {
				return errors.ErrUnsupported
			}
			return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, 65534, 65534))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ids")
			err := prepare(dir)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip("probe: not root, so the test cannot give a directory away")
			}
			if err != nil {
				t.Fatal(err)
			}
			l, err := lockSlotIn(dir, sandbox.NewID())
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Hint == "" {
				l.release()
				t.Errorf("got %v, want an error with a hint", err)
			}
		})
	}
}
