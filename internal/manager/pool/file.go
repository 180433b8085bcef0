package pool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/sandbox"
)

// fileVersion is that of the file's format.
const fileVersion = 1

// maxFile bounds what is read of it.
const maxFile = 1 << 20

// sizes is what the file holds.
type sizes struct {
	Version int                `json:"version"`
	Pools   []sandbox.PoolSpec `json:"pools"`
}

// load reads the sizes that save has written. No file means none.
func load(path string) ([]sandbox.PoolSpec, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var s sizes
	if err == nil && len(b) > maxFile {
		err = errors.New("it is too large")
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err = d.Decode(&s)
	}
	if err == nil && s.Version != fileVersion {
		err = errors.New("it was written by another version")
	}
	for i := 0; err == nil && i < len(s.Pools); i++ {
		err = s.Pools[i].Validate()
	}
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the sizes of pools cannot be read: %w", err).WithField("file", path)
	}
	return s.Pools, nil
}

// save writes the sizes aside, syncs them and gives them their name.
func save(path string, pools []sandbox.PoolSpec) (err error) {
	failed := func(err error) error {
		return sandbox.Errorf(sandbox.Unavailable, "the sizes of pools cannot be written: %w", err).WithField("file", path).
			WithHint("is the disk full?")
	}
	b, err := json.Marshal(sizes{fileVersion, pools})
	if err != nil {
		return failed(err)
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return failed(err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return failed(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return failed(err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return failed(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return failed(err)
	}
	return nil
}
