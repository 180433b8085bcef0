package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Version is that of the manifest's format.
const Version = 1

// maxManifest bounds what is read of a manifest.
const maxManifest = 1 << 20

// PagesName is the file of an image that may be as large as the sandbox's
// memory. Its size is checked before each resume, its digest is for a check in
// full.
const PagesName = "pages"

// Manifest says what an image is of and what it must be restored with.
type Manifest struct {
	Version    int              `json:"version"`
	Sandbox    sandbox.ID       `json:"sandbox"`
	Generation uint64           `json:"generation"` // that was saved
	Build      string           `json:"build"`      // of the programs that saved it
	Boundary   sandbox.Boundary `json:"boundary"`
	Template   Template         `json:"template"`
	Limits     sandbox.Limits   `json:"limits"`
	Explicit   driver.Explicit  `json:"explicit"`
	User       string           `json:"user"`
	Hostname   string           `json:"hostname"`
	SavedAt    time.Time        `json:"saved_at"`
	Files      []File           `json:"files"`
}

// Template is what is known of the template that a sandbox started from.
type Template struct {
	Name      string    `json:"name"`
	Kind      string    `json:"kind,omitempty"`
	Digest    string    `json:"digest,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
}

// Same reports whether t and o are one template, as far as is known of both.
func (t Template) Same(o Template) bool {
	return t.Name == o.Name && t.Kind == o.Kind && t.Digest == o.Digest && t.CreatedAt.Equal(o.CreatedAt)
}

// File is one file of an image.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Bytes is what the image's files hold.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// sealed is how a manifest lies on disk.
type sealed struct {
	Manifest *Manifest `json:"manifest"`
	SHA256   string    `json:"sha256"` // of the manifest, as it is encoded
}

func (m *Manifest) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	b, err = json.Marshal(sealed{m, hex.EncodeToString(sum[:])})
	return append(b, '\n'), err
}

// Parse reads a manifest, whatever its files hold now. It takes only the form in
// which manifests are written: JSON has many for one value, and a flipped bit may
// make one of another.
func Parse(b []byte) (*Manifest, error) {
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil || s.Manifest == nil {
		return nil, errors.New("is no manifest")
	}
	if s.Manifest.Version != Version {
		return nil, fmt.Errorf("has version %d and this build reads %d", s.Manifest.Version, Version)
	}
	again, err := s.Manifest.encode()
	if err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("has changed since it was written")
	}
	for _, f := range s.Manifest.Files {
		if f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == ".." || f.Name == ManifestName {
			return nil, fmt.Errorf("names the file %q", f.Name)
		}
	}
	return s.Manifest, nil
}

// check compares a file of the image in dir with what the manifest says of it.
func (f File) check(dir string) error {
	file, err := open(filepath.Join(dir, f.Name))
	if err != nil {
		return damaged(dir, f.Name, "cannot be opened").WithCause(err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return damaged(dir, f.Name, "cannot be read").WithCause(err)
	case info.Size() != f.Size:
		return damaged(dir, f.Name, fmt.Sprintf("has %d bytes instead of %d", info.Size(), f.Size))
	case f.Name == PagesName:
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

// digests lists the files in dir but the manifest, and has each on disk.
func digests(dir string) (out []File, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == ManifestName {
			continue
		}
		f, err := fileOf(dir, e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b File) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return out, nil
}

func fileOf(dir, name string) (File, error) {
	file, err := open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return File{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is no regular file", name)
	}
	sum, err := digest(file)
	return File{Name: name, Size: info.Size(), SHA256: sum}, err
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
