package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// Entry is an image on disk, complete or a draft.
type Entry struct {
	ID    sandbox.ID
	Draft bool
	Path  string
}

// Dir is the directory of all images.
func (s *Store) Dir() string { return s.dir }

// Entries returns what there is of images.
func (s *Store) Entries() ([]Entry, error) {
	found, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "images cannot be listed: %w", err).WithField("directory", s.dir)
	}
	var out []Entry
	for _, f := range found {
		name, draft := strings.CutSuffix(f.Name(), unfinished)
		if id, err := sandbox.ParseID(name); err == nil {
			out = append(out, Entry{id, draft, filepath.Join(s.dir, f.Name())})
		}
	}
	return out, nil
}

// RemoveDraft removes what has not become an image.
func (s *Store) RemoveDraft(id sandbox.ID) error {
	if _, err := sandbox.ParseID(string(id)); err != nil {
		return err // it becomes a part of a path
	}
	if err := os.RemoveAll(s.Draft(id)); err != nil {
		return failed("cannot be removed", id, err)
	}
	return nil
}
