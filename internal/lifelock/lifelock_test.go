package lifelock_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/belljar-sh/belljar/internal/lifelock"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func held(t *testing.T, path string) bool {
	t.Helper()
	is, err := lifelock.Held(path)
	if err != nil {
		t.Error(err)
	}
	return is
}

func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := lifelock.Held(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: got %v", err)
	}
	one, two := open(t, path), open(t, path)
	if held(t, path) {
		t.Error("held by nobody")
	}
	for range 2 {
		if err := lifelock.Take(one); err != nil {
			t.Error("take:", err)
		}
	}
	if err := lifelock.Take(two); !errors.Is(err, lifelock.ErrHeld) {
		t.Errorf("the second: got %v", err)
	}
	two.Close() // which would free a lock of the process
	if !held(t, path) {
		t.Error("not held")
	}

	// A child that has the file holds the lock on.
	cmd := exec.CommandContext(t.Context(), "cat")
	cmd.ExtraFiles = []*os.File{one}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	one.Close()
	if !held(t, path) {
		t.Error("not held by the child")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if held(t, path) {
		t.Error("held by the dead")
	}
	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := lifelock.Held(link); err == nil {
		t.Error("a link was followed")
	}
}

// TestAskingTakesNothing: those who ask never keep anybody from taking the lock,
// and never take each other for the owner.
func TestAskingTakesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open(t, path)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := lifelock.Held(path); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2000 {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := lifelock.Take(f); err != nil {
			t.Fatal("take:", err)
		}
		f.Close()
	}
	close(stop)
	asking.Wait()
}
