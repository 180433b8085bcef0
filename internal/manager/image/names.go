package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/sandbox"
)

// namesName is the file of a snapshot that tells what it is called: it may
// change while the image does not.
const namesName = "names.json"

type signedNames struct {
	Names     []string `json:"names"`
	Signature string   `json:"signature"`
}

func (s *Store) namesText(id sandbox.ID, names []string) ([]byte, error) {
	b, err := json.Marshal(names)
	return signedText("names of "+string(id), b), err
}

// SetNames writes what a snapshot is called, of a draft or of a complete one.
func (s *Store) SetNames(id sandbox.ID, names []string) error {
	dir := s.Path(id)
	if !isDir(dir) {
		dir = s.Draft(id)
	}
	if names == nil {
		names = []string{}
	}
	text, err := s.namesText(id, names)
	if err != nil {
		return failed("has names that cannot be encoded", id, err)
	}
	b, err := json.Marshal(signedNames{names, s.key.sign(text)})
	if err != nil {
		return failed("has names that cannot be encoded", id, err)
	}
	aside := filepath.Join(dir, namesName+unfinished)
	err = errors.Join(writeSynced(aside, append(b, '\n')), os.Rename(aside, filepath.Join(dir, namesName)), filesum.SyncPath(dir))
	if err != nil {
		return failed("cannot be named", id, err)
	}
	return nil
}

// Names reads what a complete snapshot is called.
func (s *Store) Names(id sandbox.ID) ([]string, error) {
	b, err := readSmall(filepath.Join(s.Path(id), namesName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var n signedNames
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		return nil, damaged(s.Path(id), namesName, "cannot be read").WithCause(err)
	}
	again, err := json.Marshal(n)
	text, terr := s.namesText(id, n.Names)
	if err != nil || terr != nil || !bytes.Equal(append(again, '\n'), b) || !signed(s.key.Public(), n.Signature, text) {
		return nil, damaged(s.Path(id), namesName, "has changed since it was written")
	}
	return n.Names, nil
}
