// Package image keeps images of sandboxes, those of paused ones and those of
// snapshots: for each a directory with the files that a driver wrote and a
// manifest that says what they are.
//
//	DIR/ID/       complete: every file and the manifest are on disk
//	DIR/ID.new/   being written, or left by a crash
//
// A directory gets its final name last of all, in one step. What is read back is
// checked against the manifest, and the manifest against the digest that it
// carries: a file that has changed is an error that names it.
//
// Digests tell damage from the lack of it, and the signature what this
// installation has written from what it has not: a memory image holds objects of
// the guest's kernel, and who could make it read another's would have that kernel.
package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/sandbox"
)

// ManifestName is the file of an image that tells what the others are.
const ManifestName = "manifest.json"

const unfinished = ".new"

// Store is a directory of images. It is safe for concurrent use, but one image
// is for one goroutine at a time.
type Store struct {
	dir string
	key *Key
}

// New returns the images in dir, which exists with mode 0700. What is written is
// signed with key, and what is read must be.
func New(dir string, key *Key) *Store { return &Store{dir, key} }

// Key is the one that signs.
func (s *Store) Key() *Key { return s.key }

// List returns the IDs of all complete images.
func (s *Store) List() (out []sandbox.ID, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.Internal, "images cannot be listed: %w", err).WithField("directory", s.dir)
	}
	for _, e := range entries {
		if id, err := sandbox.ParseID(e.Name()); err == nil && e.IsDir() {
			out = append(out, id)
		}
	}
	return out, nil
}

// Path is where the complete image of a sandbox lies.
func (s *Store) Path(id sandbox.ID) string { return filepath.Join(s.dir, string(id)) }

// Draft is where an image is written.
func (s *Store) Draft(id sandbox.ID) string { return s.Path(id) + unfinished }

// Begin removes whatever there is of a sandbox, which therefore must be alive,
// and returns an empty directory of mode 0700.
func (s *Store) Begin(id sandbox.ID) (string, error) {
	if err := s.Remove(id); err != nil {
		return "", err
	}
	if err := os.Mkdir(s.Draft(id), 0o700); err != nil {
		return "", failed("cannot be begun", id, err)
	}
	return s.Draft(id), nil
}

// Empty removes what has been written of an image into dir, which stays.
func Empty(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// Seal writes the manifest of a draft that a driver has completed, and has all of
// it on disk. The list of files is filled in from the draft unless whoever wrote
// them has told it. It may be called again.
func (s *Store) Seal(m *Manifest) error {
	dir := s.Draft(m.ID())
	if len(m.Files) == 0 {
		var err error
		if m.Files, err = Digests(dir); err != nil {
			return failed("cannot be read", m.ID(), err)
		}
	}
	if err := m.check(); err != nil {
		return failed("cannot be sealed", m.ID(), err)
	}
	b, err := m.encode(s.key)
	if err != nil {
		return failed("has a manifest that cannot be encoded", m.ID(), err)
	}
	if err := writeSynced(filepath.Join(dir, ManifestName), b); err != nil {
		return failed("cannot be written", m.ID(), err)
	}
	return s.synced(m.ID(), dir)
}

// Publish gives a sealed draft its final name.
func (s *Store) Publish(id sandbox.ID) error {
	if err := os.Rename(s.Draft(id), s.Path(id)); err != nil {
		return failed("cannot be put into its place", id, err)
	}
	return s.synced(id, s.dir)
}

func (s *Store) synced(id sandbox.ID, dir string) error {
	if err := filesum.SyncPath(dir); err != nil {
		return failed("cannot be synced", id, err)
	}
	return nil
}

// Has reports whether there is a complete image.
func (s *Store) Has(id sandbox.ID) bool { return isDir(s.Path(id)) }

// HasDraft reports whether there is something of an image that has not got its
// name yet.
func (s *Store) HasDraft(id sandbox.ID) bool {
	files, err := os.ReadDir(s.Draft(id))
	return err == nil && len(files) > 0
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// Open returns the manifest of a complete image, once the manifest's digest and
// signature, the size of each file and the content of all but the pages agree
// with it. Any that does not is a [sandbox.Conflict] naming the file.
func (s *Store) Open(id sandbox.ID) (*Manifest, error) { return s.open(id, false) }

// Verify is Open with every byte looked at, those of the pages too.
func (s *Store) Verify(id sandbox.ID) (*Manifest, error) { return s.open(id, true) }

func (s *Store) open(id sandbox.ID, full bool) (*Manifest, error) {
	m, err := s.Manifest(id)
	if err != nil {
		return nil, err
	}
	for _, f := range m.Files {
		if err := check(f, s.Path(id), full); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Manifest returns the manifest of a complete image when it is whole and signed,
// without a look at the files that it names.
func (s *Store) Manifest(id sandbox.ID) (*Manifest, error) {
	dir := s.Path(id)
	b, err := readSmall(filepath.Join(dir, ManifestName))
	if err != nil {
		return nil, damaged(dir, ManifestName, "cannot be read").WithCause(err)
	}
	m, err := Parse(b)
	switch {
	case err != nil:
		return nil, damaged(dir, ManifestName, err.Error())
	case m.ID() != id:
		return nil, damaged(dir, ManifestName, "is of "+string(m.ID()))
	case !m.SignedBy(s.key):
		return nil, damaged(dir, ManifestName, "is signed by another installation")
	}
	return m, nil
}

// Remove removes what there is of a sandbox, complete or not.
func (s *Store) Remove(id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err // it becomes a part of a path
	}
	err := os.RemoveAll(s.Draft(id))
	// A half removed image must not have the name of a complete one.
	if rerr := os.Rename(s.Path(id), s.Draft(id)); rerr == nil {
		err = errors.Join(err, os.RemoveAll(s.Draft(id)))
	} else if !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return failed("cannot be removed", id, err)
	}
	return nil
}

// Sweep removes every image of a sandbox of which keep says no, and whatever
// else has the name of an image.
func (s *Store) Sweep(keep func(sandbox.ID) bool) error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		id, err := sandbox.ParseID(strings.TrimSuffix(e.Name(), unfinished))
		if err == nil && !keep(id) {
			errs = append(errs, os.RemoveAll(filepath.Join(s.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func failed(how string, id sandbox.ID, err error) error {
	kind := sandbox.Internal
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		kind = sandbox.ResourceExhausted
	}
	return sandbox.Errorf(kind, "the image %s: %w", how, err).WithField("image", string(id))
}

func damaged(dir, name, how string) *sandbox.Error {
	return sandbox.Errorf(sandbox.Conflict, "a file of the image %s", how).
		WithField("file", filepath.Join(dir, name)).
		WithHint("put the file back as it was, or give the sandbox or snapshot up: what is damaged is not restored")
}

// Adopt makes a draft of the files of a complete image that lies elsewhere on
// the same file system, under names of their own: nobody ever writes to them.
func (s *Store) Adopt(id sandbox.ID, from string, m *Manifest) error {
	draft, err := s.Begin(id)
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := os.Link(filepath.Join(from, f.Name), filepath.Join(draft, f.Name)); err != nil {
			return failed("cannot be taken over", id, err)
		}
	}
	return nil
}
