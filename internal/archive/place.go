package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// tempPrefix begins the names of directories in which something is made before
// it is renamed to where it belongs.
const tempPrefix = ".belljar-tmp-"

// Place unpacks r, the tar stream of one file or directory, at the path dst as
// cp does, and returns the path that it came to lie at:
//
//   - dst is a directory: below it under its own name, or, when the stream
//     begins with an entry for the tree itself ("."), directly in it;
//   - dst is a file: in its place, if the stream holds no directory;
//   - dst does not exist but its parent does: under the name dst.
//
// An existing directory is merged with one of the same name; files of equal
// names are replaced. dst is resolved once, with the caller's rights, before
// anything is read, and not again. The stream is unpacked into a new directory
// beside the target, on the same file system, and renamed from there when all
// of it has arrived: after an error the target is as it was.
func Place(ctx context.Context, dst string, r io.Reader, o Options) (Summary, string, error) {
	p, err := Prepare(ctx, dst, r, o)
	if err != nil {
		if p != nil {
			return p.Summary, "", err
		}
		return Summary{}, "", err
	}
	defer p.Close()
	where, err := p.Place()
	return p.Summary, where, err
}

// target is where something is placed: in dir, under name; with name empty dir
// itself was named.
type target struct {
	dir      *os.File
	path     string // of dir
	name     string
	needDir  bool // the caller wrote a slash behind the name
	existing bool
}

func findTarget(dst string) (*target, error) {
	if dst == "" || strings.IndexByte(dst, 0) >= 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "not a path").WithField("destination", dst)
	}
	st, err := os.Stat(dst)
	switch {
	case err == nil && st.IsDir():
		return openTarget(&target{path: dst})
	case err == nil && !st.Mode().IsRegular():
		return nil, sandbox.Errorf(sandbox.Invalid, "the destination is neither a file nor a directory").
			WithField("destination", dst).WithHint("use - to write a tar stream to standard output")
	case err == nil:
		real, err := filepath.EvalSymlinks(dst)
		if err != nil {
			return nil, destinationError(dst, err)
		}
		return openTarget(&target{path: filepath.Dir(real), name: filepath.Base(real), existing: true})
	case !errors.Is(err, os.ErrNotExist):
		return nil, destinationError(dst, err)
	}
	clean := filepath.Clean(dst)
	return openTarget(&target{path: filepath.Dir(clean), name: filepath.Base(clean), needDir: strings.HasSuffix(dst, "/")})
}

func openTarget(t *target) (*target, error) {
	fd, err := unix.Open(t.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, destinationError(t.path, err)
	}
	t.dir = os.NewFile(uintptr(fd), t.path)
	return t, nil
}

func destinationError(path string, err error) error {
	kind := sandbox.Invalid
	if errors.Is(err, os.ErrPermission) {
		kind = sandbox.Denied
	}
	return sandbox.Errorf(kind, "the destination cannot be used: %w", err).WithField("destination", path).
		WithHint("its parent directory must exist and be writable")
}

// put moves from to where the target says and returns its path.
func (t *target) put(from item, isRoot bool) (string, error) {
	to := item{dir: int(t.dir.Fd()), name: t.name}
	switch {
	case t.name == "" && isRoot:
		return t.path, from.mergeInto(to.dir)
	case t.name == "":
		to.name = from.name
	}
	where := filepath.Join(t.path, to.name)
	if t.needDir && from.kind() != unix.S_IFDIR {
		return "", sandbox.Errorf(sandbox.Invalid, "the destination does not exist").WithField("destination", where+"/").
			WithHint("make the directory first, or leave out the slash")
	}
	return where, from.moveTo(to)
}

// temp is a directory of ours in which something is made.
type temp struct {
	f      *os.File
	parent int
	name   string
}

func newTemp(parent *os.File) (*temp, error) {
	t := &temp{parent: int(parent.Fd()), name: tempPrefix + rand.Text()}
	if err := unix.Mkdirat(t.parent, t.name, 0o700); err != nil {
		return nil, err
	}
	fd, err := openat(t.parent, t.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		unix.Unlinkat(t.parent, t.name, unix.AT_REMOVEDIR)
		return nil, err
	}
	t.f = os.NewFile(uintptr(fd), t.name)
	return t, nil
}

// remove removes what is still there under the temporary name.
func (t *temp) remove() {
	t.f.Close()
	removeBeneath(t.parent, t.name) // nothing more can be done; the name says whose it is
}
