// Package filesum tells the files of a flat directory by size and SHA-256, and
// has them on disk. Keepers use it for the images that they write, and the
// manager for those that it finds.
package filesum

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Sync lists the files in dir but those that skip says yes to, and has each of
// them, and the directory, on disk. Digests are counted while the disk writes.
// Anything but a regular file is an error.
func Sync(dir string, skip func(name string) bool) (out []driver.File, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if skip != nil && skip(e.Name()) {
			continue
		}
		f, err := fileOf(dir, e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b driver.File) int { return strings.Compare(a.Name, b.Name) })
	return out, SyncPath(dir)
}

func fileOf(dir, name string) (driver.File, error) {
	file, err := Open(filepath.Join(dir, name))
	if err != nil {
		return driver.File{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return driver.File{}, err
	}
	if !info.Mode().IsRegular() {
		return driver.File{}, fmt.Errorf("%s is no regular file", name)
	}
	synced := make(chan error, 1)
	go func() { synced <- file.Sync() }()
	sum, err := Digest(file)
	return driver.File{Name: name, Size: info.Size(), SHA256: sum}, errors.Join(err, <-synced)
}

// Digest returns the SHA-256, in hexadecimal, of what r holds.
func Digest(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
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
