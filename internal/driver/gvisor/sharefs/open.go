package sharefs

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/fsutil"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
)

// maxDirentBytes bounds one answer to a request for directory entries.
const maxDirentBytes = 128 << 10

// file is an open FD.
type file struct {
	lisafs.OpenFD
	conn *conn
	fd   int
	dev  [2]uint32 // major and minor of a directory
}

var _ lisafs.OpenFDImpl = (*file)(nil)

// writes tells whether open(2) flags ask for more than reading.
func writes(flags uint32) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
}

// Open implements lisafs.ControlFDImpl.
func (n *node) Open(flags uint32) (*lisafs.OpenFD, int, error) {
	if err := n.mayOpen(flags); err != nil {
		return nil, -1, err
	}
	if n.IsDir() {
		f, err := n.openDir()
		return f.FD(), -1, err
	}
	fd, err := n.openRegular(flags)
	if err != nil {
		return nil, -1, err
	}
	f := n.newFile(fd, flags)
	return f.FD(), n.conn.donation(fd), nil
}

func (n *node) mayOpen(flags uint32) error {
	switch {
	case n.foreign:
		return unix.EACCES
	case !n.IsDir() && !n.IsRegular():
		return unix.EPERM
	case !writes(flags):
		return nil
	case n.IsDir():
		return unix.EISDIR
	case n.conn.ReadOnly:
		return unix.EROFS
	}
	return n.mayChange(changeContent)
}

// openRegular opens the file and truncates it only after it has passed.
func (n *node) openRegular(flags uint32) (int, error) {
	fd, err := n.conn.reopen(n.fd, int(flags&unix.O_ACCMODE))
	if err != nil || !writes(flags) {
		return fd, err
	}
	err = writable(fd)
	if err == nil && flags&unix.O_TRUNC != 0 {
		err = truncate(n.conn, n.fd, fd, flags)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// truncate empties a file whose descriptor fd may have been opened for reading
// only.
func truncate(c *conn, path, fd int, flags uint32) error {
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		return unix.Ftruncate(fd, 0)
	}
	w, err := c.reopen(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(w)
	return unix.Ftruncate(w, 0)
}

// writable refuses what is not a plain file or would keep a set-ID bit while its
// content changes.
func writable(fd int) error {
	var st unix.Statx_t
	if err := stat(fd, "", &st); err != nil {
		return err
	}
	if !isType(&st, unix.S_IFREG) || st.Mode&setID != 0 {
		return unix.EPERM
	}
	return nil
}

// donation returns a descriptor for the sentry, or -1: it can do without.
func (c *conn) donation(fd int) int {
	if !c.donate {
		return -1
	}
	got, err := unix.Dup(fd)
	if err != nil {
		return -1
	}
	return got
}

func (n *node) openDir() (*file, error) {
	fd, err := n.conn.reopen(n.fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var st unix.Statx_t
	if err := stat(fd, "", &st); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := n.newFile(fd, unix.O_RDONLY)
	f.dev = [2]uint32{st.Dev_major, st.Dev_minor}
	return f, nil
}

func (n *node) newFile(fd int, flags uint32) *file {
	f := &file{conn: n.conn, fd: fd}
	f.OpenFD.Init(n.FD(), flags, f)
	return f
}

// FD implements lisafs.OpenFDImpl.
func (f *file) FD() *lisafs.OpenFD {
	if f == nil {
		return nil
	}
	return &f.OpenFD
}

// Close implements lisafs.OpenFDImpl.
func (f *file) Close() {
	unix.Close(f.fd)
	f.fd = -1
}

// Renamed implements lisafs.OpenFDImpl: an open file has no name.
func (*file) Renamed() {}

// Flush implements lisafs.OpenFDImpl: nothing is buffered here.
func (*file) Flush() error { return nil }

// Stat implements lisafs.OpenFDImpl.
func (f *file) Stat() (lisafs.Statx, error) {
	var st unix.Statx_t
	if err := stat(f.fd, "", &st); err != nil {
		return lisafs.Statx{}, err
	}
	return f.conn.attrs(&st), nil
}

// Sync implements lisafs.OpenFDImpl.
func (f *file) Sync() error { return unix.Fsync(f.fd) }

// transfer repeats a positioned call until buf is done or nothing moves.
func transfer(buf []byte, off uint64, call func([]byte, int64) (int, error)) (uint64, error) {
	if off > math.MaxInt64-uint64(len(buf)) {
		return 0, unix.EINVAL
	}
	done := 0
	for done < len(buf) {
		n, err := call(buf[done:], int64(off)+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && done == 0 {
			return 0, err
		}
		if err != nil || n <= 0 {
			break
		}
		done += n
	}
	return uint64(done), nil
}

// Write implements lisafs.OpenFDImpl.
func (f *file) Write(buf []byte, off uint64) (uint64, error) {
	return transfer(buf, off, func(b []byte, at int64) (int, error) { return unix.Pwrite(f.fd, b, at) })
}

// Read implements lisafs.OpenFDImpl.
func (f *file) Read(buf []byte, off uint64) (uint64, error) {
	return transfer(buf, off, func(b []byte, at int64) (int, error) { return unix.Pread(f.fd, b, at) })
}

// Allocate implements lisafs.OpenFDImpl; it makes room and nothing else.
func (f *file) Allocate(mode, off, length uint64) error {
	switch {
	case mode != 0:
		return unix.EOPNOTSUPP
	case off > math.MaxInt64 || length > math.MaxInt64-off:
		return unix.EFBIG
	}
	return unix.Fallocate(f.fd, 0, int64(off), int64(length))
}

// Getdent64 implements lisafs.OpenFDImpl. Entries lie on the device of their
// directory, except on file systems that join several; there each is asked.
func (f *file) Getdent64(count uint32, rewind bool, record func(lisafs.Dirent64)) error {
	if rewind {
		if _, err := unix.Seek(f.fd, 0, 0); err != nil {
			return err
		}
	}
	var buf [8192]byte
	for left := int(min(count, maxDirentBytes)); left > 0; {
		n, err := unix.Getdents(f.fd, buf[:min(len(buf), left)])
		if errors.Is(err, unix.EINVAL) && left < fsutil.UnixDirentMaxSize {
			return nil // no room for one more entry
		}
		if err != nil || n <= 0 {
			return err
		}
		fsutil.ParseDirents(buf[:n], func(ino uint64, off int64, typ uint8, name string, _ uint16) {
			f.record(ino, off, typ, name, record)
		})
		left -= n
	}
	return nil
}

func (f *file) record(ino uint64, off int64, typ uint8, name string, record func(lisafs.Dirent64)) {
	dev := f.dev
	if f.conn.perEntry {
		var st unix.Statx_t
		if stat(f.fd, name, &st) != nil {
			return // gone meanwhile
		}
		dev = [2]uint32{st.Dev_major, st.Dev_minor}
	}
	record(lisafs.Dirent64{
		Ino: primitive.Uint64(ino), DevMajor: primitive.Uint32(dev[0]), DevMinor: primitive.Uint32(dev[1]),
		Off: primitive.Uint64(off), Type: primitive.Uint8(typ), Name: lisafs.SizedString(name),
	})
}
