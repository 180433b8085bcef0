package diskuse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, path string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
		t.Fatal(err)
	}
}

func walk(t *testing.T, path string) []File {
	t.Helper()
	files, err := Walk(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A file with two names counts once, and is freed with the last of them.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, filepath.Join(a, "own"), 1<<16)
	write(t, filepath.Join(a, "both"), 1<<20)
	if err := os.Mkdir(b, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(a, "both"), filepath.Join(b, "both")); err != nil {
		t.Skipf("probe: hard links: %v", err)
	}
	ofA, ofB := walk(t, a), walk(t, b)
	seen := Set{}
	fresh, shared := seen.Add(ofA)
	if fresh < 1<<20+1<<16 || shared != 0 {
		t.Errorf("the first: got %d and %d shared", fresh, shared)
	}
	if fresh, shared = seen.Add(ofB); fresh >= 1<<20 || shared < 1<<20 {
		t.Errorf("the second: got %d and %d shared", fresh, shared)
	}
	alone := Set{}
	alone.Add(ofB)
	if n := alone.Freed(ofB); n >= 1<<20 {
		t.Errorf("without the first, the second frees %d", n)
	}
	if n := seen.Freed(ofA) + seen.Freed(ofB); n < 1<<20+1<<16 || n > 2<<20 {
		t.Errorf("both free %d", n)
	}
}

func TestHolesAndLinks(t *testing.T) {
	dir := t.TempDir()
	hole := filepath.Join(dir, "hole")
	write(t, hole, 1)
	if err := os.Truncate(hole, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	files := walk(t, dir)
	if fresh, _ := (Set{}).Add(files); len(files) != 3 || fresh > 1<<20 {
		t.Errorf("got %d files of %d bytes, want three of hardly any", len(files), fresh)
	}
	if files := walk(t, filepath.Join(dir, "nothing")); len(files) != 0 {
		t.Errorf("of nothing: got %v", files)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Walk(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}

func TestDisk(t *testing.T) {
	size, free, err := Disk(t.TempDir())
	if err != nil || size <= 0 || free < 0 || free > size {
		t.Errorf("got %d of %d, %v", free, size, err)
	}
	if _, _, err := Disk("/nothing/here"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
