package guest

import (
	"archive/tar"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// getTar streams a file or directory. A link that the path itself names is
// followed, no other; FIFOs, sockets and devices are left out, as is what the
// user may not read, and the end of the stream says so.
func (s *Server) getTar(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	return s.as(t.id, func() error {
		fd, err := openAt(unix.AT_FDCWD, t.path, unix.O_PATH, 0)
		if err != nil {
			return fsError("path", t.path, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return fsError("path", t.path, err)
		}
		name := path.Base(t.path)
		if t.path == "/" {
			name = "."
		}
		p := &packer{s: s, q: q, root: name}
		return p.begin(t.path, &st)
	})
}

// packer writes one tar stream.
type packer struct {
	s    *Server
	q    *request
	root string
	w    *tar.Writer
	buf  []byte
	left []wire.LeftOut
}

// leave takes note of an entry that is left out.
func (p *packer) leave(name, reason string) {
	i := slices.IndexFunc(p.left, func(l wire.LeftOut) bool { return l.Reason == reason })
	if i < 0 {
		i = len(p.left)
		p.left = append(p.left, wire.LeftOut{Reason: reason, Names: []string{}})
	}
	l := &p.left[i]
	if l.Count++; len(l.Names) < wire.MaxLeftOut {
		l.Names = append(l.Names, name[:min(len(name), wire.MaxLeftOutName)])
	}
}

// confess ends the stream with what was left out.
func (p *packer) confess() error {
	if len(p.left) == 0 {
		return nil
	}
	b, err := json.Marshal(p.left)
	if err != nil {
		return err
	}
	return p.w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header",
		PAXRecords: map[string]string{wire.TarComment: string(b)}, Format: tar.FormatPAX,
	})
}

func specialKind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFIFO:
		return "a FIFO"
	}
	return "a device"
}

const unreadable = "not readable for the user"

// begin answers with an error while that is still possible, then streams.
func (p *packer) begin(at string, st *unix.Stat_t) error {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	default:
		return mustBeRegular(st, at)
	}
	fd, err := openAt(unix.AT_FDCWD, at, flags, 0)
	if err != nil {
		return fsError("path", at, err)
	}
	f := os.NewFile(uintptr(fd), at)
	defer f.Close()
	if err := unix.Fstat(fd, st); err != nil {
		return fsError("path", at, err)
	}
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	p.buf = buf[:maxPooled]
	p.q.w.Header().Set("Content-Type", "application/x-tar")
	p.q.w.WriteHeader(http.StatusOK)
	out := &batch{w: p.q.w}
	p.w = tar.NewWriter(out)
	err = p.add(f, p.root, st)
	if err == nil {
		err = p.confess()
	}
	if err == nil {
		err = p.w.Close()
	}
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return errBroken
	}
	return nil
}

// batch gathers small writes: each one that reaches the channel is a system
// call.
type batch struct {
	w   io.Writer
	buf []byte
}

const batchSize = 64 << 10

func (b *batch) Write(p []byte) (int, error) {
	if len(b.buf)+len(p) > batchSize {
		if err := b.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) >= batchSize {
		return b.w.Write(p)
	}
	b.buf = append(b.buf, p...)
	return len(p), nil
}

func (b *batch) flush() error {
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:0]
	return err
}

// add writes f, an open file or directory, as name.
func (p *packer) add(f *os.File, name string, st *unix.Stat_t) error {
	h := p.header(name, st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		if err := p.w.WriteHeader(h); err != nil {
			return err
		}
		return p.content(f, st.Size)
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.w.WriteHeader(h); err != nil {
			return err
		}
		return p.directory(f, name)
	}
	return nil
}

func (p *packer) header(name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), ModTime: modTime(st), Format: tar.FormatPAX,
		Uid: int(st.Uid), Gid: int(st.Gid), Uname: p.s.users.owner(st.Uid), Gname: p.s.users.groupName(st.Gid),
	}
}

// content writes exactly size bytes: a file that shrinks meanwhile breaks the
// stream off, one that grows is cut.
func (p *packer) content(f *os.File, size int64) error {
	for size > 0 {
		n, err := f.Read(p.buf[:min(int64(len(p.buf)), size)])
		if n > 0 {
			if _, err := p.w.Write(p.buf[:n]); err != nil {
				return err
			}
			size -= int64(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) directory(d *os.File, name string) error {
	names, err := d.Readdirnames(-1)
	if err != nil {
		p.leave(name, unreadable)
		return nil
	}
	slices.Sort(names)
	for _, child := range names {
		if err := p.q.ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(child, tempPrefix) {
			continue
		}
		if err := p.child(d, child, name+"/"+child); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) child(d *os.File, child, name string) error {
	dir := int(d.Fd())
	var st unix.Stat_t
	if unix.Fstatat(dir, child, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil // removed meanwhile
	}
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to, err := readLink(dir, child)
		if err != nil || to == "" {
			return nil
		}
		h := p.header(name, &st)
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
		return p.w.WriteHeader(h)
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	case unix.S_IFREG:
	default:
		p.leave(name, specialKind(st.Mode))
		return nil
	}
	fd, err := unix.Openat(dir, child, flags, 0)
	if err != nil {
		if err != unix.ENOENT {
			p.leave(name, unreadable)
		}
		return nil
	}
	f := os.NewFile(uintptr(fd), child)
	defer f.Close()
	was := st.Mode & unix.S_IFMT
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != was {
		return nil // swapped meanwhile
	}
	if was == unix.S_IFDIR && isVirtual(fd) {
		return nil
	}
	return p.add(f, name, &st)
}
