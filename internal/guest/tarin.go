package guest

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on what one archive may hold.
const (
	maxTarEntries = 1_000_000
	maxTarDepth   = 256
)

// putTar unpacks a stream beneath a directory, with the user's rights. Names
// are resolved beneath the directory by descriptor and no link is followed on
// the way. After an error what came before it is there.
func (s *Server) putTar(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	err = s.as(t.id, func() error {
		dir, err := makeDir(t.path)
		if err != nil {
			return fsError("path", t.path, err)
		}
		defer unix.Close(dir)
		if isVirtual(dir) {
			return errVirtual("path", t.path)
		}
		u := &unpacker{q: q, root: dir, parent: -1}
		defer u.close()
		return u.run(tar.NewReader(&atLeast{r: q.Body}))
	})
	if err != nil {
		return s.noteDisk(err)
	}
	// Archives are padded, and an answer before the end of the request would
	// break its connection off.
	_, _ = io.CopyN(io.Discard, q.Body, maxPadding)
	return noContent(q)
}

// maxPadding bounds what is read behind the end of an archive.
const maxPadding = 1 << 20

// atLeast reads ahead: package tar reads 512 bytes at a time.
type atLeast struct {
	r   io.Reader
	buf []byte
	at  int
	n   int
}

func (a *atLeast) Read(p []byte) (int, error) {
	if a.at == a.n {
		if len(p) >= batchSize {
			return a.r.Read(p)
		}
		if a.buf == nil {
			a.buf = make([]byte, batchSize)
		}
		n, err := a.r.Read(a.buf)
		if n == 0 {
			return 0, err
		}
		a.at, a.n = 0, n
	}
	n := copy(p, a.buf[a.at:a.n])
	a.at += n
	return n, nil
}

// unpacker unpacks one archive.
type unpacker struct {
	q    *request
	root int

	parent     int // of the last entry, to save opening it again
	parentName string
	modes      []dirMode // of directories, set when all is in them
}

type dirMode struct {
	name string
	mode uint32
	time time.Time
}

func (u *unpacker) close() {
	if u.parent >= 0 {
		unix.Close(u.parent)
	}
}

func (u *unpacker) run(r *tar.Reader) error {
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	for n := 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return tarError(err)
		}
		if n == maxTarEntries {
			return sandbox.Errorf(sandbox.ResourceExhausted, "an archive has at most %d entries", maxTarEntries).WithField("entry", h.Name)
		}
		if err := u.entry(h, r, buf[:maxPooled]); err != nil {
			return err
		}
	}
}

func tarError(err error) error {
	switch {
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return sandbox.Errorf(sandbox.Invalid, "not a tar archive: %v", err)
	case errors.Is(err, tar.ErrInsecurePath):
		return sandbox.Errorf(sandbox.Invalid, "a name in the archive leads out of it")
	}
	return sandbox.Errorf(sandbox.Canceled, "the archive was cut off").WithCause(err)
}

// within checks a name or the target of a hard link: relative, and not above
// the directory that is unpacked into. It returns it cleaned.
func within(h *tar.Header, name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return "", sandbox.Errorf(sandbox.Invalid, "an entry without a usable name").WithField("entry", h.Name)
	case path.IsAbs(name), clean == "..", strings.HasPrefix(clean, "../"), hasDotDot(name):
		return "", sandbox.Errorf(sandbox.Invalid, "the entry leads out of the destination: %q", cutTo(name, 256)).WithField("entry", h.Name)
	case strings.Count(clean, "/") >= maxTarDepth || len(clean) >= sandbox.MaxPath:
		return "", sandbox.Errorf(sandbox.Invalid, "the name is too long or too deep").WithField("entry", h.Name)
	}
	return clean, nil
}

func hasDotDot(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func cutTo(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// linkInside tells whether the target of a symbolic link at name stays beneath
// the destination, going by names.
func linkInside(name, target string) bool {
	if path.IsAbs(target) {
		return false
	}
	p := path.Join(path.Dir(name), target)
	return p != ".." && !strings.HasPrefix(p, "../")
}

func (u *unpacker) entry(h *tar.Header, r io.Reader, buf []byte) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil // never made
	}
	name, err := within(h, h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil
		}
		return sandbox.Errorf(sandbox.Invalid, "an entry without a usable name").WithField("entry", h.Name)
	}
	if err := u.enter(path.Dir(name)); err != nil {
		return fsError("entry", h.Name, err)
	}
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(name, base, h)
	case tar.TypeReg:
		err = u.file(base, h, r, buf)
	case tar.TypeSymlink:
		if !linkInside(name, h.Linkname) || h.Linkname == "" {
			return sandbox.Errorf(sandbox.Invalid, "the link leads out of the destination: %q", cutTo(h.Linkname, 256)).WithField("entry", h.Name)
		}
		err = u.replace(base, func() error { return unix.Symlinkat(h.Linkname, u.parent, base) })
	case tar.TypeLink:
		err = u.hardLink(base, h)
	}
	return fsError("entry", h.Name, err)
}

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS

func (u *unpacker) openBeneath(name string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: beneath}
	for {
		fd, err := unix.Openat2(u.root, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// enter makes dir the parent of what comes, making it where it is missing.
func (u *unpacker) enter(dir string) error {
	if u.parent >= 0 && u.parentName == dir {
		return nil
	}
	fd, err := u.openBeneath(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == unix.ENOENT {
		if err = u.enter(path.Dir(dir)); err != nil {
			return err
		}
		if err = unix.Mkdirat(u.parent, path.Base(dir), 0o755); err != nil && err != unix.EEXIST {
			return err
		}
		fd, err = u.openBeneath(dir, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return err
	}
	u.close()
	u.parent, u.parentName = fd, dir
	return nil
}

// permissions are what an entry may bring: no set-id and no sticky bits.
func permissions(h *tar.Header) uint32 { return uint32(h.Mode) & 0o777 }

// entryTime is the entry's time if it is one that file systems can hold.
func entryTime(h *tar.Header) time.Time {
	if t := h.ModTime; t.Unix() >= 0 && t.Year() < 2106 {
		return t
	}
	return time.Now()
}

func (u *unpacker) directory(name, base string, h *tar.Header) error {
	err := unix.Mkdirat(u.parent, base, 0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(u.parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.ENOTDIR
		}
		return nil // merged: it keeps its own mode
	}
	if err == nil {
		u.modes = append(u.modes, dirMode{name, permissions(h), entryTime(h)})
	}
	return err
}

// finish gives directories their modes and times, the deepest first.
func (u *unpacker) finish() error {
	for i := len(u.modes) - 1; i >= 0; i-- {
		m := u.modes[i]
		fd, err := u.openBeneath(m.name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			continue // moved or replaced meanwhile
		}
		setTime(fd, m.time)
		unix.Fchmod(fd, m.mode)
		unix.Close(fd)
	}
	return nil
}

func setTime(fd int, t time.Time) {
	ts := unix.NsecToTimeval(t.UnixNano())
	unix.Futimes(fd, []unix.Timeval{ts, ts})
}

// replace makes an entry, in the place of what has its name unless that is a
// directory.
func (u *unpacker) replace(base string, create func() error) error {
	err := create()
	if err != unix.EEXIST {
		return err
	}
	if err := unix.Unlinkat(u.parent, base, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return create()
}

func (u *unpacker) file(base string, h *tar.Header, r io.Reader, buf []byte) error {
	fd := -1
	err := u.replace(base, func() (err error) {
		fd, err = unix.Openat(u.parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if _, werr := f.Write(buf[:n]); werr != nil {
				return errnoOf(werr)
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF && u.atEnd(r) {
			break
		}
		if err != nil {
			return tarError(err)
		}
	}
	setTime(fd, entryTime(h))
	return unix.Fchmod(fd, permissions(h))
}

// atEnd tells a last piece from an archive that broke off.
func (u *unpacker) atEnd(r io.Reader) bool {
	_, err := r.Read(make([]byte, 1))
	return err == io.EOF
}

func (u *unpacker) hardLink(base string, h *tar.Header) error {
	to, err := within(h, h.Linkname)
	if err != nil {
		return err
	}
	dir, err := u.openBeneath(path.Dir(to), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return u.replace(base, func() error { return unix.Linkat(dir, path.Base(to), u.parent, base, 0) })
}
