package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const wantSwaps = 100_000

// swapper exchanges the directory d below root for a link to the host's
// directory and back, until stopped. It returns how often.
func swapper(j *jail, d string, stop *atomic.Bool, swaps *atomic.Int64) error {
	link := filepath.Join(j.root, "link")
	if err := os.Symlink(filepath.Join(j.outer, "host"), link); err != nil {
		return err
	}
	for !stop.Load() {
		err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(j.root, d), unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		if err == nil {
			swaps.Add(1)
		}
	}
	return nil
}

// TestUnpackRace unpacks again and again while a directory of the tree is
// exchanged for a link to a directory outside. Nothing may come to lie there.
func TestUnpackRace(t *testing.T) {
	var entries []entry
	for i := range 2 {
		entries = append(entries, dir(fmt.Sprintf("d/%d", i)), file(fmt.Sprintf("d/%d/f", i), "evil"), file(fmt.Sprintf("d/f%d", i), "evil"),
			file("canary", "evil"), file("d/canary", "evil"), hard(fmt.Sprintf("h%d", i), "d/canary"), link(fmt.Sprintf("d/%d/l", i), "f"))
	}
	raw := makeTar(t, entries...)
	j := newJail(t)
	root := openDir(t, j.root)
	if _, err := Unpack(t.Context(), root, bytes.NewReader(raw), Options{}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var swaps atomic.Int64
	done := make(chan error, 1)
	go func() { done <- swapper(j, "d", &stop, &swaps) }()
	fine, failed := 0, 0
	for swaps.Load() < wantSwaps {
		if _, err := Unpack(t.Context(), root, bytes.NewReader(raw), Options{}); err != nil {
			failed++
		} else {
			fine++
		}
		// h0 is linked from d/canary: outside it could only be the host's.
		if b, err := os.ReadFile(filepath.Join(j.root, "h0")); err == nil && string(b) == "canary" {
			t.Fatal("a hard link to the host's file was made")
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d swaps, %d unpacked, %d refused", swaps.Load(), fine, failed)
	j.check(t)
	if err := Remove(openDir(t, filepath.Dir(j.root)), "root"); err != nil {
		t.Fatal(err)
	}
}

// TestPackRace packs while a directory is exchanged for a link to a directory
// outside. Nothing from there may be packed.
func TestPackRace(t *testing.T) {
	j := newJail(t)
	mkTree(t, j.root, "d", "d/canary=inside", "d/e", "d/e/f=inside")
	var stop atomic.Bool
	var swaps atomic.Int64
	done := make(chan error, 1)
	go func() { done <- swapper(j, "d", &stop, &swaps) }()
	packs := 0
	for swaps.Load() < wantSwaps/4 {
		var b bytes.Buffer
		if _, err := Pack(t.Context(), &b, j.root, PackOptions{}); err != nil {
			t.Fatal(err)
		}
		packs++
		for tr := tar.NewReader(&b); ; {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			body, _ := io.ReadAll(tr)
			if strings.Contains(string(body), "canary") {
				t.Fatalf("%s was read through a link", h.Name)
			}
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d swaps, %d packs", swaps.Load(), packs)
	j.check(t)
}

// TestRemoveRace removes a tree while one of its directories is exchanged for a
// link to a directory outside.
func TestRemoveRace(t *testing.T) {
	j := newJail(t)
	var stop atomic.Bool
	var swaps atomic.Int64
	mkTree(t, j.root, "d")
	done := make(chan error, 1)
	go func() { done <- swapper(j, "d", &stop, &swaps) }()
	root := openDir(t, j.root)
	for swaps.Load() < wantSwaps/4 {
		Remove(root, "d") // fails when the directory is exchanged meanwhile
		mkdirs(root)
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	j.check(t)
}

func mkdirs(root *os.File) {
	fd, err := mkdirsBeneath(int(root.Fd()), []string{"d", "e", "canary"}, func([]string) {})
	if err == nil {
		unix.Close(fd)
	}
}
