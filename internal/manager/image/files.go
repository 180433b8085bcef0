package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// PagesName is the file of an image that may be as large as the sandbox's
// memory. Its size is checked before each resume, its digest is for a check in
// full.
const PagesName = "pages"

// File is one file of an image.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// check compares a file of the image in dir with what the manifest says of it;
// of the pages, unless full is set, the size alone.
func (f File) check(dir string, full bool) error {
	file, err := open(filepath.Join(dir, f.Name))
	if err != nil {
		return damaged(dir, f.Name, "cannot be opened").WithCause(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return damaged(dir, f.Name, "cannot be read").WithCause(err)
	case !info.Mode().IsRegular():
		return damaged(dir, f.Name, "is no regular file")
	case info.Size() != f.Size:
		return damaged(dir, f.Name, fmt.Sprintf("has %d bytes instead of %d", info.Size(), f.Size))
	case f.Name == PagesName && !full:
		return nil
	}
	sum, err := digest(file)
	if err != nil {
		return damaged(dir, f.Name, "cannot be read").WithCause(err)
	}
	if sum != f.SHA256 {
		return damaged(dir, f.Name, "has changed since it was written")
	}
	return nil
}

// Digests lists the files in dir with size and SHA-256, and has each of them,
// and the directory, on disk. Digests are counted while the disk writes.
func Digests(dir string) (out []File, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == ManifestName || e.Name() == namesName {
			continue
		}
		f, err := fileOf(dir, e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b File) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return out, syncPath(dir)
}

func fileOf(dir, name string) (File, error) {
	file, err := open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is no regular file", name)
	}
	synced := make(chan error, 1)
	go func() { synced <- file.Sync() }()
	sum, err := digest(file)
	return File{Name: name, Size: info.Size(), SHA256: sum}, errors.Join(err, <-synced)
}

func digest(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// open opens a file that must not be a link, without waiting for a pipe.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

func readSmall(path string) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifest))
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
