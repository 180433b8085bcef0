// Package filetree reads the list of what a sandbox has changed in its root, in
// the form in which a driver tells it, and says what each change is
// beside the template.
//
// A list is a tar stream of the upper layer of a union of directories. Names
// begin with "./"; a directory's ends with "/". A regular file's content is not
// its own: it begins with its size, eight bytes, the lowest first, and what
// follows is the driver's. A character device with the numbers 0 and 0 stands for
// a file of the template that is gone. The attribute trusted.overlay.opaque with
// the value "y" tells that nothing of the template is left in a directory.
//
// The kernel that writes a list may be in the hands of its guest: whatever is
// not as described is an error, memory is bounded, and names are bytes that
// whoever shows them must escape.
package filetree

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// Type is what a file is.
type Type string

// The types.
const (
	File    Type = "file"
	Dir     Type = "directory"
	Symlink Type = "symlink"
	Fifo    Type = "fifo"
	Char    Type = "char-device"
	Block   Type = "block-device"
	Link    Type = "hard-link" // another name of an earlier entry
	Gone    Type = "gone"      // of the template, and no more
)

// Entry is one name in a list.
type Entry struct {
	Path     string // absolute, cleaned: bytes of the guest's choosing
	Type     Type
	Size     int64 // of regular files, in bytes
	Mode     uint32
	UID, GID int
	ModTime  time.Time
	Target   string // of a symbolic link
	// Opaque tells that a directory hides what the template has there.
	Opaque bool
	// Same is the path of the earlier entry whose file a hard link is.
	Same string
}

// Bounds of a list.
const (
	maxEntries = 4_000_000
	maxNames   = 512 << 20 // bytes of all names
	maxName    = 64 << 10
	maxDepth   = 4096
)

// Entries yields what the list in r names, in its order: a directory goes before
// what is in it. The first error is the last thing that it yields.
func Entries(r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		t := tar.NewReader(r)
		names := 0
		for n := 0; ; n++ {
			h, err := t.Next()
			if err == io.EOF {
				return
			}
			var e Entry
			switch {
			case err != nil:
				err = bad("is no list: %v", err)
			case n >= maxEntries:
				err = bad("names more than %d files", maxEntries)
			default:
				e, err = entry(h, t)
				if names += len(e.Path) + len(e.Target) + len(e.Same); names > maxNames && err == nil {
					err = bad("has more than %d MiB of names", maxNames>>20)
				}
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func bad(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Internal, "the sandbox's list of files "+format, args...)
}

func entry(h *tar.Header, r io.Reader) (Entry, error) {
	e := Entry{
		Mode: uint32(h.Mode & 0o7777), UID: h.Uid, GID: h.Gid, ModTime: h.ModTime,
		Opaque: h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] == "y",
	}
	var err error
	if e.Path, err = path(h.Name, h.Typeflag == tar.TypeDir); err != nil {
		return e, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		e.Type = Dir
	case tar.TypeReg:
		e.Type = File
		var size [8]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return e, bad("tells no size of a file: %v", err)
		}
		if e.Size = int64(binary.LittleEndian.Uint64(size[:])); e.Size < 0 {
			return e, bad("tells a size that cannot be")
		}
	case tar.TypeSymlink:
		e.Type, e.Target = Symlink, h.Linkname
	case tar.TypeFifo:
		e.Type = Fifo
	case tar.TypeBlock:
		e.Type = Block
	case tar.TypeChar:
		if e.Type = Char; h.Devmajor == 0 && h.Devminor == 0 {
			e.Type = Gone
		}
	case tar.TypeLink:
		e.Type = Link
		if e.Same, err = path(h.Linkname, false); err != nil {
			return e, err
		}
	default:
		return e, bad("has an entry of the type %q", h.Typeflag)
	}
	return e, nil
}

// path makes an absolute path of a name in a list, none of whose parts leads
// elsewhere.
func path(name string, dir bool) (string, error) {
	if name == "./" && dir {
		return "/", nil
	}
	rest, ok := strings.CutPrefix(name, "./")
	if dir && ok {
		rest, ok = strings.CutSuffix(rest, "/")
	}
	if !ok || len(name) > maxName || strings.Count(rest, "/") > maxDepth || strings.Contains(rest, "\x00") {
		return "", errBadName
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return "", errBadName
		}
	}
	return "/" + rest, nil
}

var errBadName = bad("has %w", errors.New("a name that no file has"))
