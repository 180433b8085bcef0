// Package filesum tells the files of a flat directory by size and digest, and has
// them on disk. Keepers use it for the images that they write, and the manager for
// those that it finds.
//
// The digest of a file of at most [PieceLen] bytes is its SHA-256. That of a larger
// one is the SHA-256 of the SHA-256s of its pieces of so many bytes, in their
// order, so that several processors can count a file of memory.
package filesum

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Pending is a directory whose files are being counted and brought to disk, both
// at the same time. Files must be called.
type Pending struct {
	synced, counted chan struct{}
	files           []driver.File
	syncErr, err    error
}

// Start begins with the files in dir but those that skip says yes to. Anything
// but a regular file is an error.
func Start(dir string, skip func(name string) bool) *Pending {
	p := &Pending{synced: make(chan struct{}), counted: make(chan struct{})}
	open, err := openAll(dir, skip)
	if err != nil {
		p.err, p.syncErr = err, err
		close(p.synced)
		close(p.counted)
		return p
	}
	go func() {
		defer close(p.synced)
		for _, f := range open {
			p.syncErr = errors.Join(p.syncErr, f.Sync())
		}
		p.syncErr = errors.Join(p.syncErr, SyncPath(dir))
	}()
	go func() {
		defer close(p.counted)
		for _, f := range open {
			sum, size, err := digestFile(f)
			p.err = errors.Join(p.err, err)
			p.files = append(p.files, driver.File{Name: filepath.Base(f.Name()), Size: size, SHA256: sum})
		}
		<-p.synced
		for _, f := range open {
			f.Close()
		}
	}()
	return p
}

// Synced waits until all of it is on disk.
func (p *Pending) Synced() error {
	<-p.synced
	return p.syncErr
}

// Files waits for all of it and returns the files by name.
func (p *Pending) Files() ([]driver.File, error) {
	<-p.counted
	<-p.synced
	if err := errors.Join(p.err, p.syncErr); err != nil {
		return nil, err
	}
	return p.files, nil
}

// Sync is Start and Files.
func Sync(dir string, skip func(name string) bool) ([]driver.File, error) {
	return Start(dir, skip).Files()
}

// openAll opens the files in dir, by name.
func openAll(dir string, skip func(name string) bool) (out []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range out {
				f.Close()
			}
		}
	}()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if skip != nil && skip(e.Name()) {
			continue
		}
		f, err := Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return out, err
		}
		out = append(out, f)
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", e.Name())
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// Open opens a file that must not be a link, without waiting for a pipe.
func Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// SyncPath has a file or directory on disk.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
