package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// copyBuffer is how much of a file is read at once; runs of holeUnit zero
// bytes become holes.
const (
	copyBuffer = 256 << 10
	holeUnit   = 32 << 10
)

var zeros [holeUnit]byte

// file writes a regular file that did not exist before.
func (u *unpacker) file(hdr *tar.Header, parts []string) error {
	fd := -1
	err := u.create(hdr, parts, func(parent int, last string) (err error) {
		fd, err = openat(parent, last, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := u.content(fd, hdr); err != nil {
		return err
	}
	return placeError(hdr.Name, u.metaOf(hdr).apply(fd))
}

func (u *unpacker) content(fd int, hdr *tar.Header) error {
	var at int64
	for at < hdr.Size {
		want := min(hdr.Size-at, int64(len(u.buf)))
		n, err := io.ReadFull(u.tar, u.buf[:want])
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return readError(err, hdr.Name)
		}
		if err := u.m.wrote(hdr.Name, int64(n)); err != nil {
			return err
		}
		if err := writeSparse(fd, u.buf[:n], at); err != nil {
			return placeError(hdr.Name, err)
		}
		at += int64(n)
		u.ticker.tick(Progress{u.m.entries, u.m.content, hdr.Name}, false)
	}
	return placeError(hdr.Name, unix.Ftruncate(fd, hdr.Size))
}

// writeSparse writes b at the offset and leaves holes where it is zero.
func writeSparse(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		run, zero := zeroRun(b)
		if !zero {
			if err := pwriteAll(fd, b[:run], at); err != nil {
				return err
			}
		}
		b, at = b[run:], at+int64(run)
	}
	return nil
}

// zeroRun returns the length of the run of units that b begins with, all of
// them zero or none of them.
func zeroRun(b []byte) (int, bool) {
	isZero := func(i int) bool {
		unit := b[i:min(i+holeUnit, len(b))]
		return bytes.Equal(unit, zeros[:len(unit)])
	}
	zero := isZero(0)
	i := holeUnit
	for i < len(b) && isZero(i) == zero {
		i += holeUnit
	}
	return min(i, len(b)), zero
}

func pwriteAll(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// meta is what an entry's own description comes down to.
type meta struct {
	mode     uint32
	uid, gid int // -1: leave
	owners   bool
	time     time.Time
}

const nobody = 65534

func (u *unpacker) metaOf(hdr *tar.Header) meta {
	m := meta{mode: uint32(hdr.Mode) & 0o777 &^ u.o.Umask, time: saneTime(hdr.ModTime, u.now)}
	if u.o.Owners {
		m.owners = true
		m.uid, m.gid = u.saneID(hdr, hdr.Uid), u.saneID(hdr, hdr.Gid)
	}
	dir := hdr.Typeflag == tar.TypeDir
	if u.o.Sticky && dir {
		m.mode |= uint32(hdr.Mode) & unix.S_ISVTX
	}
	special := uint32(hdr.Mode) & (unix.S_ISUID | unix.S_ISGID)
	switch {
	case special == 0:
	case u.o.Setuid && dir:
		m.mode |= special & unix.S_ISGID
	case u.o.Setuid && u.o.Owners && m.uid == 0:
		m.mode |= special
	case !dir:
		u.sum.skip(hdr.Name, "its set-user-ID or set-group-ID bit")
	}
	return m
}

func (u *unpacker) saneID(hdr *tar.Header, id int) int {
	if id >= 0 && id <= 65535 {
		return id
	}
	u.sum.skip(hdr.Name, "its owner, which is out of range")
	return nobody
}

// saneTime returns t when every file system can hold it, and otherwise now.
func saneTime(t, now time.Time) time.Time {
	if s := t.Unix(); s < 0 || s > 1<<32-1 {
		return now
	}
	return t
}

// apply gives an open file or directory its owner, mode and times. The owner
// comes first: changing it clears set-user-ID.
func (m meta) apply(fd int) error {
	if m.owners {
		if err := unix.Fchown(fd, m.uid, m.gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, m.mode); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(m.time.UnixNano())
	err := unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.8
		tv := unix.NsecToTimeval(m.time.UnixNano())
		return unix.Futimes(fd, []unix.Timeval{tv, tv})
	}
	return err
}

// applyLink gives a link its owner and times; it has no mode.
func (m meta) applyLink(parent int, name string) error {
	if m.owners {
		if err := unix.Fchownat(parent, name, m.uid, m.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(m.time.UnixNano())
	return unix.UtimesNanoAt(parent, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}
