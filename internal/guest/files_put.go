package guest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	defaultMode = 0o644
	maxLinks    = 40
	// tempPrefix begins the names of files that are still arriving.
	tempPrefix = ".belljar-upload-"
)

// upload is one file on its way in. It is written beside its destination and
// renamed when all of it is there, so the old content stays until then.
type upload struct {
	s    *Server
	id   identity
	path string // as asked for

	dir     int    // of the destination, links resolved
	name    string // in dir
	f       *os.File
	temp    string       // in dir; "" when the destination is written in place
	old     *unix.Stat_t // of the file that is replaced
	mode    uint32       // 0: the old one's, else the default
	meta    map[string]string
	inPlace *os.File // the destination, where a directory forbids new files
}

func (s *Server) putFile(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	if t.slash {
		return sandbox.Errorf(sandbox.Invalid, "the path names a directory").WithField("path", t.path)
	}
	u := &upload{s: s, id: t.id, path: t.path, dir: -1}
	if u.mode, err = parseMode(t.query.Get("mode")); err != nil {
		return err
	}
	if u.meta, err = parseMeta(q.Header.Get(wire.HeaderMeta)); err != nil {
		return err
	}
	if err := s.as(t.id, u.open); err != nil {
		u.discard()
		return s.noteDisk(err)
	}
	if err := u.receive(q.Body); err != nil {
		u.discard()
		return s.noteDisk(err)
	}
	var e wire.Entry
	err = s.as(t.id, func() (err error) {
		if err = u.commit(); err == nil {
			e, err = s.entry(u.dir, u.name, t.path)
		}
		return err
	})
	if err != nil {
		u.discard()
		return s.noteDisk(err)
	}
	u.close()
	return q.json(e)
}

// noteDisk counts a full disk.
func (s *Server) noteDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		s.hits.add(hitDisk)
	}
	return err
}

// parseMode reads an octal mode; "" is 0.
func parseMode(v string) (uint32, error) {
	if v == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(v, 8, 32)
	if err != nil || m > 0o7777 {
		return 0, sandbox.Errorf(sandbox.Invalid, "a mode is an octal number up to 7777").WithField("mode", v)
	}
	return uint32(m), nil
}

// Bounds on metadata, which becomes extended attributes.
const (
	maxMetaKey   = 246
	maxMetaTotal = 4096
)

func parseMeta(v string) (map[string]string, error) {
	if v == "" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(v), &m); err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "metadata is a JSON object of strings").WithField(wire.HeaderMeta, v)
	}
	total := 0
	for k, val := range m {
		if k == "" || len(k) > maxMetaKey || strings.IndexByte(k, 0) >= 0 {
			return nil, sandbox.Errorf(sandbox.Invalid, "a metadata key has 1 to %d bytes", maxMetaKey).WithField("metadata", k)
		}
		total += len(k) + len(val)
	}
	if total > maxMetaTotal {
		return nil, sandbox.Errorf(sandbox.Invalid, "metadata has at most %d bytes", maxMetaTotal).WithField("metadata", strconv.Itoa(total))
	}
	return m, nil
}

// open finds the destination and makes the file that the bytes go to. It runs
// with the user's rights.
func (u *upload) open() error {
	if err := u.locate(); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(u.dir, u.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil:
		if err := u.replaceable(&st); err != nil {
			return err
		}
		u.old = &st
	case err != unix.ENOENT:
		return fsError("path", u.path, err)
	}
	if isVirtual(u.dir) {
		return errVirtual("path", u.path)
	}
	err = u.create()
	if u.old != nil && (err == unix.EACCES || err == unix.EPERM || err == unix.EROFS) {
		return u.openInPlace()
	}
	return fsError("path", u.path, err)
}

func (u *upload) replaceable(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFCHR, unix.S_IFBLK:
		return sandbox.Errorf(sandbox.Denied, "the path is a device, not a file").WithField("path", u.path)
	default:
		return mustBeRegular(st, u.path)
	}
	// A rename would replace a file that the user may not write.
	return fsError("path", u.path, unix.Faccessat(u.dir, u.name, unix.W_OK, unix.AT_EACCESS))
}

// locate opens the directory of the destination, making it where it is
// missing, and follows links at the end of the path.
func (u *upload) locate() error {
	p := u.path
	for range maxLinks {
		if p == "/" {
			return sandbox.Errorf(sandbox.Invalid, "the path is a directory, not a file").WithField("path", u.path)
		}
		u.closeDir()
		dir, err := makeDir(path.Dir(p))
		if err != nil {
			return fsError("path", u.path, err)
		}
		u.dir, u.name = dir, path.Base(p)
		to, err := readLink(u.dir, u.name)
		if err != nil || to == "" {
			return nil // not a link: the caller looks at what it is
		}
		if !path.IsAbs(to) {
			to = path.Dir(p) + "/" + to
		}
		// Not cleaned: ".." after a link is relative to where it leads.
		p = strings.TrimRight(to, "/")
		if len(p) >= sandbox.MaxPath {
			return fsError("path", u.path, unix.ENAMETOOLONG)
		}
		if p == "" || path.Base(p) == ".." || path.Base(p) == "." {
			return sandbox.Errorf(sandbox.Invalid, "the path is a directory, not a file").WithField("path", u.path)
		}
	}
	return fsError("path", u.path, unix.ELOOP)
}

// makeDir opens a directory, making it and its parents where they are missing.
func makeDir(p string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	fd, err := openAt(unix.AT_FDCWD, p, flags, 0)
	if err != unix.ENOENT || p == "/" {
		return fd, err
	}
	up, err := makeDir(path.Dir(p))
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	if err := unix.Mkdirat(up, path.Base(p), 0o755); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return openAt(up, path.Base(p), flags, 0)
}

// readLink returns the target of a link, "" for what is not one.
func readLink(dir int, name string) (string, error) {
	buf := make([]byte, sandbox.MaxPath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err == unix.EINVAL {
		return "", nil
	}
	return string(buf[:max(n, 0)]), err
}

// create makes a file with a name of its own in the destination's directory.
func (u *upload) create() error {
	name := tempPrefix + rand.Text()[:16]
	fd, err := openAt(u.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	u.temp, u.f = name, os.NewFile(uintptr(fd), name)
	return nil
}

// openInPlace serves a file that may be written in a directory that may not:
// the bytes are gathered in /tmp and copied over when all are there.
func (u *upload) openInPlace() error {
	fd, err := openAt(u.dir, u.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fsError("path", u.path, err)
	}
	u.inPlace = os.NewFile(uintptr(fd), u.name)
	fd, err = unix.Open("/tmp", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fsError("path", u.path, err)
	}
	u.f = os.NewFile(uintptr(fd), "upload")
	return nil
}

// receive writes the body in as few calls as it can.
func (u *upload) receive(body io.Reader) error {
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	for {
		n, err := io.ReadFull(body, buf[:maxPooled])
		if n > 0 {
			if _, werr := u.f.Write(buf[:n]); werr != nil {
				return fsError("path", u.path, errnoOf(werr))
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return u.whole(body, err)
		default:
			return sandbox.Errorf(sandbox.Canceled, "the upload was cut off").WithField("path", u.path).WithCause(err)
		}
	}
}

// whole tells the end of the body from a body that broke: ReadFull reports a
// short last piece and a body's own "unexpected EOF" alike.
func (u *upload) whole(body io.Reader, err error) error {
	if err == io.EOF {
		return nil
	}
	if _, err := body.Read(make([]byte, 1)); err != io.EOF {
		return sandbox.Errorf(sandbox.Canceled, "the upload was cut off").WithField("path", u.path).WithCause(err)
	}
	return nil
}

// commit gives the file its attributes and its name. It runs with the user's
// rights.
func (u *upload) commit() error {
	if u.inPlace != nil {
		return u.copyInPlace()
	}
	fd := int(u.f.Fd())
	mode := u.mode
	if mode == 0 {
		mode = defaultMode
		if u.old != nil {
			mode = u.old.Mode & 0o7777
		}
	}
	if u.old != nil && os.Geteuid() == 0 {
		unix.Fchown(fd, int(u.old.Uid), int(u.old.Gid)) // fails without harm where ids are not free
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return fsError("path", u.path, err)
	}
	if err := setMeta(fd, u.meta); err != nil {
		return fsError("metadata", u.path, err)
	}
	u.s.uploads.note(u.temp, u.old != nil)
	err := unix.Renameat(u.dir, u.temp, u.dir, u.name)
	if err == unix.EBUSY && u.old != nil { // something is mounted on the name
		return u.switchInPlace()
	}
	if err != nil {
		return fsError("path", u.path, err)
	}
	u.temp = ""
	return nil
}

func (u *upload) switchInPlace() error {
	fd, err := openAt(u.dir, u.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fsError("path", u.path, err)
	}
	u.inPlace = os.NewFile(uintptr(fd), u.name)
	again, err := openAt(u.dir, u.temp, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fsError("path", u.path, err)
	}
	u.f.Close()
	u.f = os.NewFile(uintptr(again), u.temp)
	return u.copyInPlace()
}

// copyInPlace reserves the room first, so that a full disk leaves the old
// content.
func (u *upload) copyInPlace() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(u.f.Fd()), &st); err != nil {
		return fsError("path", u.path, err)
	}
	fd := int(u.inPlace.Fd())
	if st.Size > 0 {
		if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, st.Size); err == unix.ENOSPC || err == unix.EDQUOT {
			return fsError("path", u.path, err)
		}
	}
	if _, err := u.f.Seek(0, io.SeekStart); err != nil {
		return fsError("path", u.path, errnoOf(err))
	}
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	if _, err := io.CopyBuffer(struct{ io.Writer }{u.inPlace}, struct{ io.Reader }{u.f}, buf[:maxPooled]); err != nil {
		return fsError("path", u.path, errnoOf(err))
	}
	if err := unix.Ftruncate(fd, st.Size); err != nil {
		return fsError("path", u.path, err)
	}
	if u.mode != 0 {
		unix.Fchmod(fd, u.mode)
	}
	return fsError("metadata", u.path, setMeta(fd, u.meta))
}

func setMeta(fd int, meta map[string]string) error {
	for k, v := range meta {
		if err := unix.Fsetxattr(fd, "user."+k, []byte(v), 0); err != nil {
			return err
		}
	}
	return nil
}

// discard removes what has been written so far.
func (u *upload) discard() {
	if u.temp != "" {
		u.s.as(u.id, func() error { return unix.Unlinkat(u.dir, u.temp, 0) })
	}
	u.close()
}

func (u *upload) close() {
	if u.f != nil {
		u.f.Close()
	}
	if u.inPlace != nil {
		u.inPlace.Close()
	}
	if u.temp != "" {
		u.s.as(u.id, func() error { return unix.Unlinkat(u.dir, u.temp, 0) })
		u.temp = ""
	}
	u.closeDir()
}

func (u *upload) closeDir() {
	if u.dir >= 0 {
		unix.Close(u.dir)
		u.dir = -1
	}
}

// errnoOf unwraps what package os adds.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// uploadLog remembers of the last few uploads whether they replaced a file, so
// that a watch tells a write from a creation although both end in a rename.
type uploadLog struct {
	mu    sync.Mutex
	last  [64]uploaded
	count int
}

type uploaded struct {
	temp     string
	replaced bool
}

func (l *uploadLog) note(temp string, replaced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.count%len(l.last)] = uploaded{temp, replaced}
	l.count++
}

// replaced tells whether the upload that was called temp replaced a file.
func (s *Server) replaced(temp string) bool {
	s.uploads.mu.Lock()
	defer s.uploads.mu.Unlock()
	for _, u := range s.uploads.last {
		if u.temp == temp {
			return u.replaced
		}
	}
	return false
}
