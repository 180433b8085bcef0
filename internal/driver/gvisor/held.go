package gvisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// An image holds what a sandbox has changed and what it has in memory, but not
// the files of its root's lower layer: of those that were in use it has the
// names, and of mapped ones not even the pages. What gVisor finds under these
// names at a restore it takes for the same files.
//
// Which files these are the sentry's descriptors tell. Before it saves it drops
// what it has only cached, and for each file that is left it holds a descriptor,
// opened beneath the root's tree. So the names of all descriptors that lead into
// that tree, of a sentry that has just saved and stands still, are the files that
// the image refers to. They are looked up anew, beneath the tree, by the keeper:
// a sentry that lies harms its own image only.
//
// A descriptor tells the name that its file has now. One that was moved while it
// was open is another file under the sentry's own name for it. Where that shows,
// the sandbox is not saved; where it does not, as of a directory, the restored
// sentry turns out not to hold what it held.

// heldFile is one file of the lower layer that an image refers to.
type heldFile struct {
	Path  string `json:"path"`
	Raw   []byte `json:"raw_path,omitempty"` // when Path is not valid UTF-8
	Mode  uint32 `json:"mode"`               // type and permissions, as in stat(2)
	Ino   uint64 `json:"ino"`
	Size  uint64 `json:"size"`
	Mtime int64  `json:"mtime"` // nanoseconds, as is
	Ctime int64  `json:"ctime"`
}

func (f *heldFile) path() string {
	if f.Raw != nil {
		return string(f.Raw)
	}
	return f.Path
}

func (f *heldFile) fill(st *unix.Statx_t) {
	f.Mode, f.Ino, f.Size = uint32(st.Mode), st.Ino, st.Size
	f.Mtime, f.Ctime = nanos(st.Mtime), nanos(st.Ctime)
}

func nanos(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// maxHeld bounds the files that an image may refer to: a sentry cannot hold as
// many descriptors.
const maxHeld = 1 << 20

const heldStat = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

// lookUp looks at a path beneath a tree, through no link.
func lookUp(tree *os.File, path string, st *unix.Statx_t) error {
	name := strings.TrimLeft(path, "/")
	if name == "" {
		name = "."
	}
	fd, err := unix.Openat2(int(tree.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, heldStat, st)
}

// descriptors calls f with what each descriptor of a process is of that has a
// name. Those that the process closes meanwhile are passed over.
func descriptors(pid int, f func(name string, dir *os.File) error) error {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return fmt.Errorf("look at the sentry's descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("look at the sentry's descriptors: %w", err)
	}
	for _, n := range names {
		if err := f(n, dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("look at the sentry's descriptor %s: %w", n, err)
		}
	}
	return nil
}

// holding collects what a sentry holds beneath a tree.
type holding struct {
	tree  *os.File
	since int64 // when the sentry can have begun to hold anything, in nanoseconds
	found map[string]*heldFile
	mount map[uint64]bool   // mounts that the tree consists of
	lost  map[string]uint64 // mounts of what is not where its name says
}

// held lists the files beneath tree that process pid, which stands still, has
// open, and has opened after since. One that is not there any more under its name
// is an error: no restore could find it.
func held(pid int, tree *os.File, since int64) (map[string]*heldFile, error) {
	var root unix.Statx_t
	if err := lookUp(tree, "/", &root); err != nil {
		return nil, fmt.Errorf("look at the root: %w", err)
	}
	h := &holding{
		tree: tree, since: since,
		found: map[string]*heldFile{}, mount: map[uint64]bool{root.Mnt_id: true}, lost: map[string]uint64{},
	}
	if err := descriptors(pid, h.add); err != nil {
		return nil, err
	}
	for path, mount := range h.lost {
		if h.mount[mount] {
			return nil, moved(path, "is not there any more, while the sandbox has it open")
		}
	}
	for path, f := range h.found {
		if h.wasMoved(path, f) {
			return nil, moved(path, "has been moved or changed while the sandbox had it open")
		}
	}
	return h.found, nil
}

func (h *holding) add(number string, dir *os.File) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), number, buf)
	if err != nil {
		return err
	}
	path := string(buf[:n])
	if !strings.HasPrefix(path, "/") || h.found[path] != nil {
		return nil // a socket, a pipe, a file without a name, or known
	}
	var st, now unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), number, 0, heldStat, &st); err != nil {
		return err
	}
	if lookUp(h.tree, path, &now) != nil || now.Ino != st.Ino || now.Mnt_id != st.Mnt_id {
		h.lost[path] = st.Mnt_id
		return nil
	}
	f := &heldFile{Path: path}
	if strings.ToValidUTF8(path, "") != path {
		f.Path, f.Raw = strings.ToValidUTF8(path, "\ufffd"), []byte(path)
	}
	f.fill(&now)
	h.found[path], h.mount[now.Mnt_id] = f, true
	return nil
}

// wasMoved tells of a file whether it may have had another name when it was
// opened: a move changes both the file and its directory. A new link to it, or
// other permissions, change the file alone, and mean nothing to an image.
func (h *holding) wasMoved(name string, f *heldFile) bool {
	if f.Mode&unix.S_IFMT == unix.S_IFDIR || f.Ctime <= h.since {
		return false
	}
	var dir unix.Statx_t
	return lookUp(h.tree, path.Dir(name), &dir) != nil || nanos(dir.Mtime) > h.since
}

// unchanged checks that a file is what it was. With alike the tree is another
// copy of the same template, whose files have other numbers and times.
// It returns what the sentry will have to hold.
func (f *heldFile) unchanged(tree *os.File, alike bool) (inode, error) {
	var st unix.Statx_t
	if err := lookUp(tree, f.path(), &st); err != nil {
		return inode{}, moved(f.path(), "is gone")
	}
	var now heldFile
	now.fill(&st)
	how := ""
	switch {
	case now.Mode&unix.S_IFMT != f.Mode&unix.S_IFMT:
		how = "is of another type"
	case f.Mode&unix.S_IFMT == unix.S_IFDIR:
		// What is used of it is listed itself.
	case now.Size != f.Size:
		how = "has another size"
	case alike:
	case now.Ino != f.Ino:
		how = "has been replaced"
	case now.Mtime != f.Mtime:
		how = "has been written to"
	case now.Ctime != f.Ctime:
		how = "has been changed"
	}
	if how != "" {
		return inode{}, moved(f.path(), how)
	}
	return inode{st.Dev_major, st.Dev_minor, st.Ino}, nil
}

// inode tells the files of a running host apart.
type inode struct {
	major, minor uint32
	ino          uint64
}

// holds checks that a sentry that has just been restored has opened the files
// that it was meant to. What its programs have closed by now it still holds for
// a while.
func holds(pid int, want map[inode]string) error {
	left := maps.Clone(want)
	err := descriptors(pid, func(number string, dir *os.File) error {
		var st unix.Statx_t
		if err := unix.Statx(int(dir.Fd()), number, 0, unix.STATX_INO, &st); err != nil {
			return err
		}
		delete(left, inode{st.Dev_major, st.Dev_minor, st.Ino})
		return nil
	})
	if err != nil {
		return err
	}
	for _, path := range left {
		return moved(path, "was not the one that it found there when it was saved")
	}
	return nil
}

// moved is the error of a file that is not what the sandbox's memory takes it
// for.
func moved(path, how string) *sandbox.Error {
	return sandbox.Errorf(sandbox.Conflict, "a file of the template %s, which the sandbox's memory refers to", how).
		WithField("file", path).
		WithHint("put the file back as it was, to its times, or begin anew: a program that goes on with another file under it does anything")
}
