package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/belljar-sh/belljar/sandbox"
)

// maxLinks bounds the symbolic links on the way to a directory, as the kernel
// does.
const maxLinks = 40

// CheckAncestors returns an error unless dir can be moved, removed or replaced
// by root and the caller alone: of the directories that lead to it, and of the
// links on the way, none belongs to another user, and none is writable by
// another without being sticky. What is missing is not looked at: the caller
// makes it. A [sandbox.Denied] error names the path at fault.
func CheckAncestors(dir string) error {
	if !filepath.IsAbs(dir) {
		return sandbox.Errorf(sandbox.Invalid, "the path is not absolute").WithField("directory", dir)
	}
	w := &way{dir: dir, me: os.Geteuid(), group: os.Getegid(), partial: partialIDs()}
	if err := w.check("/"); err != nil {
		return err
	}
	return w.walk("/", strings.Split(filepath.Clean(dir), "/"))
}

// way is the way to a directory.
type way struct {
	dir       string
	me, group int
	partial   bool // not all users of the host have a number here
	links     int
}

// walk checks what lies on the way from an existing directory, which has been
// checked, to the last of names, which is not.
func (w *way) walk(at string, names []string) error {
	for n, name := range names {
		if name == "" || name == "." {
			continue
		}
		rest := names[n+1:]
		if name == ".." { // of a link
			at = filepath.Dir(at)
			continue
		}
		path := filepath.Join(at, name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return dirError(path, err)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return w.follow(at, path, info, rest)
		}
		if len(rest) == 0 {
			return nil
		}
		if err := w.checkInfo(path, info); err != nil {
			return err
		}
		at = path
	}
	return nil
}

// follow goes on through a link. One at the end of the way is not ours to
// follow: whoever uses the directory takes no link for it.
func (w *way) follow(at, path string, info fs.FileInfo, rest []string) error {
	if len(rest) == 0 {
		return nil
	}
	if w.links++; w.links > maxLinks {
		return dirError(w.dir, syscall.ELOOP)
	}
	if !w.trusts(owner(info)) {
		return w.denied(path, fmt.Sprintf("the link belongs to user %d", owner(info)))
	}
	target, err := os.Readlink(path)
	if err != nil {
		return dirError(path, err)
	}
	if filepath.IsAbs(target) {
		at = "/"
	}
	return w.walk(at, append(strings.Split(target, "/"), rest...))
}

func (w *way) check(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return dirError(path, err)
	}
	return w.checkInfo(path, info)
}

func (w *way) checkInfo(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return sandbox.Errorf(sandbox.Unavailable, "%s cannot be used: this is not a directory", w.dir).WithField("directory", path).
			WithHint("set %s and %s to directories of your own", EnvState, EnvRuntime)
	}
	writable := info.Mode().Perm() & 0o022
	if writable == 0o020 && w.ownGroup(st) {
		writable = 0
	}
	switch {
	case !w.trusts(int(st.Uid)):
		return w.denied(path, fmt.Sprintf("it belongs to user %d", st.Uid))
	case writable != 0 && info.Mode()&fs.ModeSticky == 0:
		return w.denied(path, fmt.Sprintf("others may write to it (mode %#o)", info.Mode().Perm()))
	}
	return nil
}

// ownGroup reports whether a directory's group is the caller's alone. Systems
// that give each user a group number both alike, and let the group write.
func (w *way) ownGroup(st *syscall.Stat_t) bool {
	return int(st.Uid) == w.me && int(st.Gid) == w.group && w.group == w.me
}

// trusts reports whether a user may replace what lies in a directory. In a user
// namespace that lacks some users, those appear as one: root among them, so it
// cannot be told from others.
func (w *way) trusts(uid int) bool {
	return uid == 0 || uid == w.me || w.partial && uid == overflowUID
}

func (w *way) denied(path, why string) error {
	return sandbox.Errorf(sandbox.Denied, "another user could replace %s: %s", w.dir, why).WithField("directory", path).
		WithHint("change that, or set %s and %s to directories of your own", EnvState, EnvRuntime)
}

// overflowUID stands for users without a number in a user namespace. It is the
// kernel's default, which hardly anybody changes.
const overflowUID = 65534

// partialIDs reports whether this process is in a user namespace in which not
// every user of the host has a number. It errs on the side of no.
func partialIDs() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !strings.Contains(string(b), "4294967295")
}

func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
