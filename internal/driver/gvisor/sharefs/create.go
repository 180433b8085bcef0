package sharefs

import (
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// mayWriteIn decides whether the directory n takes changes at all.
func (n *node) mayWriteIn(name string) error {
	switch {
	case n.foreign:
		return unix.EACCES
	case n.conn.ReadOnly:
		return unix.EROFS
	}
	return checkName(name)
}

// give hands a new file to the caller, where that is not this process.
func (c *conn) give(fd int) error {
	if c.Owner == nil {
		return nil
	}
	return unix.Fchownat(fd, "", int(c.Owner.UID), int(c.Owner.GID), unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
}

// OpenCreate implements lisafs.ControlFDImpl. The new file is the caller's,
// whatever ids are asked for.
func (n *node) OpenCreate(mode linux.FileMode, _ lisafs.UID, _ lisafs.GID, name string, flags uint32) (*lisafs.ControlFD, lisafs.Statx, *lisafs.OpenFD, int, error) {
	fail := func(err error) (*lisafs.ControlFD, lisafs.Statx, *lisafs.OpenFD, int, error) {
		return nil, lisafs.Statx{}, nil, -1, err
	}
	if err := n.mayWriteIn(name); err != nil {
		return fail(err)
	}
	if err := n.mayCreate(name, asFile); err != nil {
		return fail(err)
	}
	access := flags & unix.O_ACCMODE
	fd, err := openEntry(n.fd, name, unix.O_CREAT|unix.O_EXCL|int(access), uint32(mode))
	if err != nil {
		return fail(err)
	}
	child, st, err := n.adoptNew(fd, name)
	if err != nil {
		unix.Close(fd)
		n.undo(name, 0)
		return fail(err)
	}
	f := child.newFile(fd, access)
	return child.FD(), st, f.FD(), n.conn.donation(fd), nil
}

// adoptNew makes the control FD of a file that was just made and is open as fd.
func (n *node) adoptNew(fd int, name string) (*node, lisafs.Statx, error) {
	if err := n.conn.give(fd); err != nil {
		return nil, lisafs.Statx{}, err
	}
	at, err := n.conn.reopen(fd, unix.O_PATH)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	var st unix.Statx_t
	if err := stat(at, "", &st); err != nil {
		unix.Close(at)
		return nil, lisafs.Statx{}, err
	}
	return n.adopt(at, name, &st, false), n.conn.attrs(&st), nil
}

// undo removes what a failed operation made. It leaves what it cannot.
func (n *node) undo(name string, flags int) {
	_ = unix.Unlinkat(n.fd, name, flags)
}

// Mkdir implements lisafs.ControlFDImpl.
func (n *node) Mkdir(mode linux.FileMode, _ lisafs.UID, _ lisafs.GID, name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	if err := n.mayWriteIn(name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if err := n.mayCreate(name, asDir); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if err := unix.Mkdirat(n.fd, name, uint32(mode)&(0o775|unix.S_ISVTX)); err != nil {
		return nil, lisafs.Statx{}, err
	}
	child, st, err := n.adoptDir(name)
	if err != nil {
		n.undo(name, unix.AT_REMOVEDIR)
		return nil, lisafs.Statx{}, err
	}
	return child.FD(), st, nil
}

// adoptDir makes the control FD of a directory that was just made.
func (n *node) adoptDir(name string) (*node, lisafs.Statx, error) {
	fd, _, err := openPath(n.fd, name)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	var st unix.Statx_t
	err = stat(fd, "", &st)
	if err == nil && !isType(&st, unix.S_IFDIR) {
		err = unix.EIO // the host put something else in its place
	}
	if err == nil && st.Mode&unix.S_ISGID != 0 { // inherited
		err = n.conn.chmod(fd, uint32(st.Mode)&(0o777|unix.S_ISVTX))
	}
	if err == nil {
		err = n.conn.give(fd)
	}
	if err == nil {
		err = stat(fd, "", &st)
	}
	if err != nil {
		unix.Close(fd)
		return nil, lisafs.Statx{}, err
	}
	n.noteMade(name, &st)
	return n.adopt(fd, name, &st, false), n.conn.attrs(&st), nil
}

// noteMade remembers a new directory as the sandbox's own, unless it takes the
// place of one that was not, or is the first part of a protected path of several
// names, which counts as there from the beginning.
func (n *node) noteMade(name string, st *unix.Statx_t) {
	if !n.conn.Protect || !n.made && n.zone.Child(name).Partial() {
		return
	}
	n.conn.made.add(keyOf(st), !n.made && n.conn.made.takesPlace(n.id, name))
}

// Mknod implements lisafs.ControlFDImpl: regular files only.
func (n *node) Mknod(mode linux.FileMode, _ lisafs.UID, _ lisafs.GID, name string, _, _ uint32) (*lisafs.ControlFD, lisafs.Statx, error) {
	if err := n.mayWriteIn(name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if t := mode.FileType(); t != linux.ModeRegular && t != 0 {
		return nil, lisafs.Statx{}, unix.EPERM
	}
	if err := n.mayCreate(name, asFile); err != nil {
		return nil, lisafs.Statx{}, err
	}
	fd, err := openEntry(n.fd, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY, uint32(mode))
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	child, st, err := n.adoptNew(fd, name)
	unix.Close(fd)
	if err != nil {
		n.undo(name, 0)
		return nil, lisafs.Statx{}, err
	}
	return child.FD(), st, nil
}

// Symlink implements lisafs.ControlFDImpl. The target is stored as it is.
func (n *node) Symlink(name, target string, _ lisafs.UID, _ lisafs.GID) (*lisafs.ControlFD, lisafs.Statx, error) {
	if err := n.mayWriteIn(name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if err := n.mayCreate(name, asSymlink); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if err := unix.Symlinkat(target, n.fd, name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	child, st, err := n.lookUp(name)
	if err != nil {
		n.undo(name, 0)
		return nil, lisafs.Statx{}, err
	}
	if err := n.conn.give(child.fd); err != nil {
		child.RemoveFromConn()
		n.undo(name, 0)
		return nil, lisafs.Statx{}, err
	}
	return child.FD(), st, nil
}

// Link implements lisafs.ControlFDImpl. What is linked is the very file that n
// names; the kernel refuses links between mounts.
func (n *node) Link(to lisafs.ControlFDImpl, name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	dir, ok := to.(*node)
	if !ok {
		return nil, lisafs.Statx{}, unix.EXDEV
	}
	if err := dir.mayWriteIn(name); err != nil {
		return nil, lisafs.Statx{}, err
	}
	if err := n.mayLink(); err != nil {
		return nil, lisafs.Statx{}, err
	}
	as := asHardLink
	if n.IsSymlink() {
		as = asSymlink
	}
	if err := dir.mayCreate(name, as); err != nil {
		return nil, lisafs.Statx{}, err
	}
	err := unix.Linkat(n.conn.procFD, strconv.Itoa(n.fd), dir.fd, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil { // ENOENT when the file was unlinked meanwhile
		return nil, lisafs.Statx{}, err
	}
	child, st, err := dir.lookUp(name)
	if err != nil {
		dir.undo(name, 0)
		return nil, lisafs.Statx{}, err
	}
	return child.FD(), st, nil
}

// mayLink refuses second names for what is not a plain file or link, or carries
// a set-ID bit of the host's.
func (n *node) mayLink() error {
	if n.foreign {
		return unix.EACCES
	}
	if !n.IsRegular() && !n.IsSymlink() {
		return unix.EPERM
	}
	var st unix.Statx_t
	if err := stat(n.fd, "", &st); err != nil {
		return err
	}
	if st.Mode&setID != 0 {
		return unix.EPERM
	}
	return n.mayChange(linkFrom)
}

// BindAt implements lisafs.ControlFDImpl: no socket is made on the host.
func (*node) BindAt(string, uint32, linux.FileMode, lisafs.UID, lisafs.GID) (*lisafs.ControlFD, lisafs.Statx, *lisafs.BoundSocketFD, int, error) {
	return nil, lisafs.Statx{}, nil, -1, unix.EPERM
}
