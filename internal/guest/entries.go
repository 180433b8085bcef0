package guest

import (
	"cmp"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxEntries bounds one listing.
const maxEntries = 50_000

func modTime(st *unix.Stat_t) time.Time {
	return time.Unix(int64(st.Mtim.Sec), int64(st.Mtim.Nsec)).UTC()
}

// entry describes name in dir, without following a link; shown is its path.
func (s *Server) entry(dir int, name, shown string) (wire.Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wire.Entry{}, fsError("path", shown, err)
	}
	e := wire.Entry{
		Name: path.Base(shown), Path: shown, RawPath: rawPath(shown),
		Type: wire.TypeOther, Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		Owner: s.users.owner(st.Uid), Group: s.users.groupName(st.Gid), ModTime: modTime(&st),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Meta = wire.TypeFile, meta(shown)
	case unix.S_IFDIR:
		e.Type, e.Meta = wire.TypeDir, meta(shown)
	case unix.S_IFLNK:
		e.Type = wire.TypeSymlink
		e.Target, _ = readLink(dir, name)
	}
	return e, nil
}

// follow adds what a link leads to; nothing when it leads nowhere.
func follow(e *wire.Entry, dir int, name string) {
	if e.Type != wire.TypeSymlink {
		return
	}
	fd, err := openAt(dir, name, unix.O_PATH, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || unix.Fstat(fd, &st) != nil {
		return
	}
	e.Resolved, e.TargetMode, e.TargetType = to, st.Mode&0o7777, wire.TypeOther
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.TargetType = wire.TypeFile
	case unix.S_IFDIR:
		e.TargetType = wire.TypeDir
	}
}

// described is entry with links followed where the request asks for that.
func (s *Server) described(t target, dir int, name, shown string) (wire.Entry, error) {
	e, err := s.entry(dir, name, shown)
	if err == nil && t.resolves() {
		follow(&e, dir, name)
	}
	return e, err
}

// meta returns the user's extended attributes of p; none where there are none.
func meta(p string) map[string]string {
	var list [8 << 10]byte
	n, err := unix.Llistxattr(p, list[:])
	if err != nil || n <= 0 {
		return nil
	}
	var out map[string]string
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		key, ok := strings.CutPrefix(name, "user.")
		if !ok || key == "" {
			continue
		}
		var v [maxMetaTotal]byte
		n, err := unix.Lgetxattr(p, name, v[:])
		if err != nil {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = string(v[:n])
	}
	return out
}

func (s *Server) getStat(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	var e wire.Entry
	err = s.as(t.id, func() (err error) {
		e, err = s.described(t, unix.AT_FDCWD, t.path, t.path)
		return err
	})
	if err != nil {
		return err
	}
	return q.json(e)
}

func (s *Server) getDir(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	depth, err := q.number("depth")
	if err != nil {
		return err
	}
	l := &listing{s: s, q: q, t: t, out: []wire.Entry{}}
	err = s.as(t.id, func() error {
		fd, err := openAt(unix.AT_FDCWD, t.path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return fsError("path", t.path, err)
		}
		return l.walk(os.NewFile(uintptr(fd), t.path), t.path, max(depth, 1))
	})
	if err != nil {
		return err
	}
	return q.json(l.out)
}

// listing walks depth first in lexical order. Links are listed, not followed.
type listing struct {
	s   *Server
	q   *request
	t   target
	out []wire.Entry
}

// walk lists d, which it closes.
func (l *listing) walk(d *os.File, shown string, depth int64) error {
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return fsError("path", shown, errnoOf(err))
	}
	slices.Sort(names)
	for _, name := range names {
		if l.q.ctx.Err() != nil {
			return sandbox.Errorf(sandbox.Canceled, "the listing was given up")
		}
		if strings.HasPrefix(name, tempPrefix) {
			continue
		}
		if len(l.out) == maxEntries {
			return sandbox.Errorf(sandbox.ResourceExhausted, "more than %d entries", maxEntries).WithField("path", shown).
				WithHint("list fewer levels, or one directory at a time")
		}
		if err := l.add(d, name, path.Join(shown, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) add(d *os.File, name, shown string, depth int64) error {
	e, err := l.s.described(l.t, int(d.Fd()), name, shown)
	if sandbox.KindOf(err) == sandbox.NotFound {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	l.out = append(l.out, e)
	if e.Type != wire.TypeDir || depth <= 1 {
		return nil
	}
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // not the user's to read, or gone
	}
	return l.walk(os.NewFile(uintptr(fd), shown), shown, depth-1)
}

func (s *Server) postMkdir(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	var e wire.Entry
	err = s.as(t.id, func() error {
		var st unix.Stat_t
		if unix.Stat(t.path, &st) == nil {
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return sandbox.Errorf(sandbox.Invalid, "the path is %s", kindOf(st.Mode)).WithField("path", t.path)
			}
			return fsError("path", t.path, unix.EEXIST)
		}
		fd, err := makeDir(t.path)
		if err != nil {
			return fsError("path", t.path, err)
		}
		unix.Close(fd)
		e, err = s.entry(unix.AT_FDCWD, t.path, t.path)
		return err
	})
	if err != nil {
		return s.noteDisk(err)
	}
	return q.json(e)
}

func (s *Server) postMove(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	to, err := resolve("to", t.query.Get("to"), t.id.home)
	if err != nil {
		return err
	}
	if to == "/" || t.path == "/" {
		return sandbox.Errorf(sandbox.Invalid, "the root directory does not move").WithField("path", t.path)
	}
	var e wire.Entry
	err = s.as(t.id, func() error {
		var st unix.Stat_t
		if err := unix.Lstat(t.path, &st); err != nil {
			return fsError("path", t.path, err)
		}
		dir, err := makeDir(path.Dir(to))
		if err != nil {
			return fsError("to", to, err)
		}
		defer unix.Close(dir)
		if err := unix.Renameat(unix.AT_FDCWD, t.path, dir, path.Base(to)); err != nil {
			return fsError("to", to, err)
		}
		e, err = s.described(t, dir, path.Base(to), to)
		return err
	})
	if err != nil {
		return s.noteDisk(err)
	}
	return q.json(e)
}

func (s *Server) deleteFile(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	if t.path == "/" {
		return sandbox.Errorf(sandbox.Denied, "the root directory is not removed").WithField("path", t.path)
	}
	err = s.as(t.id, func() error {
		dir, err := openAt(unix.AT_FDCWD, path.Dir(t.path), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return fsError("path", t.path, err)
		}
		defer unix.Close(dir)
		return fsError("path", t.path, removeAt(q, dir, path.Base(t.path)))
	})
	if err != nil {
		return err
	}
	return noContent(q)
}

// removeAt removes name in dir with all that is in it. It goes by descriptor
// and follows no link, so nothing outside is touched even while somebody
// swaps directories for links. An error on one entry does not keep the others.
func removeAt(q *request, dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	fd, oerr := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if oerr != nil {
		if oerr == unix.EACCES && unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) == nil {
			return nil // empty, though not readable
		}
		if oerr == unix.ENOTDIR {
			return err
		}
		return oerr
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	// Reading a directory while it shrinks may pass over entries: go again as
	// long as that removes some.
	for {
		removed, first := removeIn(q, d)
		err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		if err == nil || first != nil || err != unix.ENOTEMPTY || removed == 0 {
			return cmp.Or(first, err)
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return errnoOf(err)
		}
	}
}

func removeIn(q *request, d *os.File) (removed int, first error) {
	for {
		names, err := d.Readdirnames(1024)
		if len(names) == 0 {
			if err != nil && err != io.EOF {
				first = cmp.Or(first, errnoOf(err))
			}
			return removed, first
		}
		for _, name := range names {
			if q.ctx.Err() != nil {
				return removed, unix.EINTR
			}
			if err := removeAt(q, int(d.Fd()), name); err == nil {
				removed++
			} else if err != unix.ENOENT {
				first = cmp.Or(first, err)
			}
		}
	}
}
