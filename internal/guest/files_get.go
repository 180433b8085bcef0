package guest

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// openRegular opens a regular file for reading. Nothing else is opened at all:
// a FIFO would hang, a device might act.
func openRegular(p string) (int, *unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return -1, nil, fsError("path", p, err)
	}
	if err := mustBeRegular(&st, p); err != nil {
		return -1, nil, err
	}
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, nil, fsError("path", p, err)
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = mustBeRegular(&st, p)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fsError("path", p, err)
	}
	return fd, &st, nil
}

func mustBeRegular(st *unix.Stat_t, p string) error {
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, "the path is %s, not a file", kindOf(st.Mode)).WithField("path", p)
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	case unix.S_IFLNK:
		return "a symbolic link"
	}
	return "of an unknown type"
}

func (s *Server) getFile(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	if t.slash {
		return sandbox.Errorf(sandbox.Invalid, "the path names a directory").WithField("path", t.path)
	}
	fd := -1
	var st *unix.Stat_t
	err = s.as(t.id, func() (err error) {
		fd, st, err = openRegular(t.path)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h := q.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Last-Modified", modTime(st).UTC().Format(http.TimeFormat))
	if st.Size == 0 {
		// Empty, or a file whose kernel does not say how long it is.
		return copyFile(q, t.path, fd, 0, -1)
	}
	from, n, part, err := byteRange(q.Header.Get("Range"), st.Size)
	if err != nil {
		h.Set("Content-Range", "bytes */"+strconv.FormatInt(st.Size, 10))
		return err
	}
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	if part {
		h.Set("Content-Range", "bytes "+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(from+n-1, 10)+"/"+strconv.FormatInt(st.Size, 10))
		q.w.WriteHeader(http.StatusPartialContent)
	}
	return copyFile(q, t.path, fd, from, n)
}

// copyFile sends n bytes from offset from, or all there is when n is -1.
func copyFile(q *request, p string, fd int, from, n int64) error {
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	sent := int64(0)
	for n < 0 || sent < n {
		want := int64(maxPooled)
		if n >= 0 {
			want = min(want, n-sent)
		}
		m, err := unix.Pread(fd, buf[:want], from+sent)
		if m > 0 {
			if _, werr := q.w.Write(buf[:m]); werr != nil {
				return errBroken
			}
			sent += int64(m)
		}
		switch {
		case err == unix.EINTR:
		case q.ctx.Err() != nil:
			return errBroken
		case err != nil && sent == 0 && n < 0:
			return fsError("path", p, err)
		case err != nil || m == 0 && n >= 0: // the file has shrunk
			return errBroken
		case m == 0:
			return nil
		}
	}
	return nil
}

// byteRange reads a Range header for a file of the given size. Of several
// ranges, or in another unit, nothing is made: the whole file is sent.
func byteRange(h string, size int64) (from, n int64, part bool, err error) {
	spec, ok := strings.CutPrefix(h, "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return 0, size, false, nil
	}
	a, b, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return 0, size, false, nil
	}
	first, errA := strconv.ParseUint(a, 10, 62)
	last, errB := strconv.ParseUint(b, 10, 62)
	switch {
	case a == "" && errB == nil: // the last bytes
		n = min(int64(last), size)
		from = size - n
	case errA == nil && b == "":
		from, n = int64(first), size-int64(first)
	case errA == nil && errB == nil && first <= last:
		from, n = int64(first), min(int64(last), size-1)-int64(first)+1
	default:
		return 0, size, false, nil
	}
	if n <= 0 || from >= size {
		return 0, 0, false, errRange.WithField("Range", h)
	}
	return from, n, true, nil
}

var errRange = sandbox.Errorf(sandbox.Invalid, "the range lies outside the file").WithCause(io.ErrUnexpectedEOF)
