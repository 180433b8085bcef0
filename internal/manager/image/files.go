package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/filesum"
)

// PagesName is the file of an image that may be as large as the sandbox's
// memory. Its size is checked before each resume, its digest is for a check in
// full.
const PagesName = "pages"

// File is one file of an image.
type File = driver.File

// check compares a file of the image in dir with what the manifest says of it;
// of the pages, unless full is set, the size alone.
func check(f File, dir string, full bool) error {
	file, err := filesum.Open(filepath.Join(dir, f.Name))
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
	sum, err := filesum.Digest(file)
	if err != nil {
		return damaged(dir, f.Name, "cannot be read").WithCause(err)
	}
	if sum != f.SHA256 {
		return damaged(dir, f.Name, "has changed since it was written")
	}
	return nil
}

// Digests lists the files of an image that somebody has written into dir, and
// has them on disk.
func Digests(dir string) ([]File, error) {
	return filesum.Sync(dir, func(name string) bool { return name == ManifestName || name == namesName })
}

func readSmall(path string) ([]byte, error) {
	f, err := filesum.Open(path)
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
