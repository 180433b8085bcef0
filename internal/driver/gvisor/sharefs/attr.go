package sharefs

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// SetStat implements lisafs.ControlFDImpl. What fails is told by the mask; the
// rest is done.
func (n *node) SetStat(req lisafs.SetStatReq) (failed uint32, failure error) {
	if err := n.maySetStat(req.Mask); err != nil {
		return req.Mask, err
	}
	try := func(mask uint32, set func(*lisafs.SetStatReq) error) {
		if req.Mask&mask == 0 {
			return
		}
		if err := set(&req); err != nil {
			failed |= req.Mask & mask
			failure = err
		}
	}
	try(unix.STATX_MODE, n.setMode)
	try(unix.STATX_SIZE, n.setSize)
	try(unix.STATX_UID|unix.STATX_GID, n.setOwner)
	try(unix.STATX_ATIME|unix.STATX_MTIME, n.setTimes)
	return failed, failure
}

func (n *node) maySetStat(mask uint32) error {
	switch {
	case n.foreign:
		return unix.EACCES
	case n.conn.ReadOnly:
		return unix.EROFS
	case mask&unix.STATX_SIZE != 0:
		if err := n.mayChange(changeContent); err != nil {
			return err
		}
	}
	return n.mayChange(changeAttrs)
}

// setMode changes permissions. A set-group-ID bit that the host put on a
// directory goes when the permissions really change, since no process here may
// set one, and stays when a guest, which does not see it, sets what is there.
func (n *node) setMode(req *lisafs.SetStatReq) error {
	mode := req.Mode & 0o777
	switch {
	case n.IsSymlink():
		return unix.EOPNOTSUPP
	case n.IsDir():
		mode |= req.Mode & unix.S_ISVTX
	case !n.IsRegular():
		return unix.EPERM
	}
	var st unix.Statx_t
	if err := stat(n.fd, "", &st); err != nil {
		return err
	}
	mode = n.conn.grantable(mode, &st)
	if n.IsDir() && uint32(visibleMode(st.Mode))&^unix.S_IFMT == mode {
		return nil
	}
	return n.conn.chmod(n.fd, mode)
}

// grantable leaves out of mode the rights to write that others on the host would
// gain: everybody never does, the group only on files that are younger than the
// server.
func (c *conn) grantable(mode uint32, st *unix.Statx_t) uint32 {
	mode &^= unix.S_IWOTH &^ uint32(st.Mode)
	if st.Mask&unix.STATX_BTIME == 0 || keyOf(st).born <= c.began {
		mode &^= unix.S_IWGRP &^ uint32(st.Mode)
	}
	return mode
}

// chmod works on descriptors that fchmod does not take.
func (c *conn) chmod(fd int, mode uint32) error {
	return unix.Fchmodat(c.procFD, strconv.Itoa(fd), mode, 0)
}

func (n *node) setSize(req *lisafs.SetStatReq) error {
	switch {
	case !n.IsRegular():
		return unix.EINVAL
	case req.Size > math.MaxInt64:
		return unix.EFBIG
	}
	fd, err := n.conn.reopen(n.fd, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := writable(fd); err != nil {
		return err
	}
	return unix.Ftruncate(fd, int64(req.Size))
}

// setOwner changes nothing. For the caller's files it says that all is well,
// as the package's documentation explains.
func (n *node) setOwner(req *lisafs.SetStatReq) error {
	var st unix.Statx_t
	if err := stat(n.fd, "", &st); err != nil {
		return err
	}
	if n.conn.ours(&st) {
		return nil
	}
	uid, gid := n.conn.ids(&st)
	if req.Mask&unix.STATX_UID != 0 && uint32(req.UID) != uid || req.Mask&unix.STATX_GID != 0 && uint32(req.GID) != gid {
		return unix.EPERM
	}
	return nil
}

func (n *node) setTimes(req *lisafs.SetStatReq) error {
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	times := [2]unix.Timespec{omit, omit}
	if req.Mask&unix.STATX_ATIME != 0 {
		times[0].Sec, times[0].Nsec = req.Atime.Sec, int64(req.Atime.Nsec)
	}
	if req.Mask&unix.STATX_MTIME != 0 {
		times[1].Sec, times[1].Nsec = req.Mtime.Sec, int64(req.Mtime.Nsec)
	}
	return unix.UtimesNanoAt(n.conn.procFD, strconv.Itoa(n.fd), times[:], 0)
}

// Limits of extended attributes.
const (
	maxXattrValue = 8 << 10
	maxXattrList  = 64 << 10
)

// hostXattrs are names among user.* in which container tools of the host record
// owners, modes and devices, which they then believe.
var hostXattrs = []string{"user.containers.", "user.fuseoverlayfs.", "user.rootlesscontainers", "user.overlay.", "user.virtiofsd."}

func guestXattr(name string) bool {
	if !strings.HasPrefix(name, "user.") || len(name) > maxName {
		return false
	}
	for _, p := range hostXattrs {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

// xattrFD opens the file for a call on its attributes.
func (n *node) xattrFD() (int, error) {
	if n.foreign {
		return -1, unix.EACCES
	}
	if !n.IsRegular() && !n.IsDir() {
		return -1, unix.EOPNOTSUPP
	}
	return n.conn.reopen(n.fd, unix.O_RDONLY)
}

// GetXattr implements lisafs.ControlFDImpl.
func (n *node) GetXattr(name string, size uint32, buffer func(uint32) []byte) (uint16, error) {
	if !guestXattr(name) {
		return 0, unix.EOPNOTSUPP
	}
	fd, err := n.xattrFD()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var value [math.MaxUint16]byte
	got, err := unix.Fgetxattr(fd, name, value[:])
	switch {
	case err != nil:
		return 0, err
	case size != 0 && got > int(size):
		return 0, unix.ERANGE
	}
	return uint16(copy(buffer(uint32(got)), value[:got])), nil
}

// SetXattr implements lisafs.ControlFDImpl.
func (n *node) SetXattr(name, value string, flags uint32) error {
	switch {
	case n.conn.ReadOnly:
		return unix.EROFS
	case !guestXattr(name):
		return unix.EPERM
	case len(value) > maxXattrValue:
		return unix.E2BIG
	case flags&^(unix.XATTR_CREATE|unix.XATTR_REPLACE) != 0:
		return unix.EINVAL
	}
	return n.changeXattr(func(fd int) error { return unix.Fsetxattr(fd, name, []byte(value), int(flags)) })
}

// RemoveXattr implements lisafs.ControlFDImpl.
func (n *node) RemoveXattr(name string) error {
	switch {
	case n.conn.ReadOnly:
		return unix.EROFS
	case !guestXattr(name):
		return unix.EPERM
	}
	return n.changeXattr(func(fd int) error { return unix.Fremovexattr(fd, name) })
}

func (n *node) changeXattr(change func(fd int) error) error {
	if err := n.mayChange(changeAttrs); err != nil {
		return err
	}
	fd, err := n.xattrFD()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return change(fd)
}

// ListXattr implements lisafs.ControlFDImpl.
func (n *node) ListXattr(uint64) (lisafs.StringArray, error) {
	fd, err := n.xattrFD()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, maxXattrList)
	got, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return nil, err
	}
	var names lisafs.StringArray
	for name := range bytes.SplitSeq(buf[:got], []byte{0}) {
		if s := string(name); guestXattr(s) {
			names = append(names, s)
		}
	}
	return names, nil
}
