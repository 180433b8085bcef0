package sharefs

import (
	"errors"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// Stat implements lisafs.ControlFDImpl.
func (n *node) Stat() (lisafs.Statx, error) {
	var st unix.Statx_t
	if err := stat(n.fd, "", &st); err != nil {
		return lisafs.Statx{}, err
	}
	return n.conn.attrsOf(&st, n.foreign), nil
}

// Walk implements lisafs.ControlFDImpl.
func (n *node) Walk(name string) (*lisafs.ControlFD, lisafs.Statx, error) {
	if n.foreign {
		return nil, lisafs.Statx{}, unix.EACCES
	}
	child, st, err := n.lookUp(name)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	return child.FD(), st, nil
}

// lookUp opens an entry of the directory n.
func (n *node) lookUp(name string) (*node, lisafs.Statx, error) {
	fd, foreign, err := openPath(n.fd, name)
	if err != nil {
		return nil, lisafs.Statx{}, err
	}
	var st unix.Statx_t
	if err := stat(fd, "", &st); err != nil {
		unix.Close(fd)
		return nil, lisafs.Statx{}, err
	}
	return n.adopt(fd, name, &st, foreign), n.conn.attrsOf(&st, foreign), nil
}

// WalkStat implements lisafs.ControlFDImpl.
func (n *node) WalkStat(path lisafs.StringArray, record func(lisafs.Statx)) error {
	if len(path) > 0 && path[0] == "" {
		st, err := n.Stat()
		if err != nil {
			return err
		}
		record(st)
		path = path[1:]
	}
	if len(path) == 0 || n.IsSymlink() {
		return nil
	}
	if n.foreign {
		return unix.EACCES
	}
	return n.conn.statEach(n.fd, path, record)
}

// statEach records the attributes of each entry along a path, until one is
// missing or a link.
func (c *conn) statEach(dir int, path []string, record func(lisafs.Statx)) error {
	at := dir
	closeAt := func() {
		if at != dir {
			unix.Close(at)
		}
	}
	defer func() { closeAt() }()
	for i, name := range path {
		if i == len(path)-1 {
			return c.statLast(at, name, record)
		}
		fd, foreign, err := openPath(at, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		closeAt()
		at = fd
		var st unix.Statx_t
		if err := stat(fd, "", &st); err != nil {
			return err
		}
		record(c.attrsOf(&st, foreign))
		switch {
		case isType(&st, unix.S_IFLNK):
			return nil
		case foreign:
			return unix.EACCES
		}
	}
	return nil
}

// statLast records the last entry of a path without opening it.
func (c *conn) statLast(dir int, name string, record func(lisafs.Statx)) error {
	if err := checkName(name); err != nil {
		return err
	}
	var st unix.Statx_t
	err := stat(dir, name, &st)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	record(c.attrsOf(&st, st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0))
	return nil
}

// StatFS implements lisafs.ControlFDImpl.
func (n *node) StatFS() (lisafs.StatFS, error) {
	if n.foreign {
		return lisafs.StatFS{}, unix.EACCES
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(n.fd, &s); err != nil {
		return lisafs.StatFS{}, err
	}
	return lisafs.StatFS{
		Type: uint64(s.Type), BlockSize: s.Bsize, Blocks: s.Blocks, BlocksFree: s.Bfree,
		BlocksAvailable: s.Bavail, Files: s.Files, FilesFree: s.Ffree, NameLength: uint64(s.Namelen),
	}, nil
}

// Readlink implements lisafs.ControlFDImpl. A target is shown as it is stored:
// the guest resolves it in its own tree.
func (n *node) Readlink(buffer func(uint32) []byte) (uint16, error) {
	for size := uint32(256); size <= 2*unix.PathMax; size *= 2 {
		b := buffer(size)
		got, err := unix.Readlinkat(n.fd, "", b)
		if err != nil {
			return 0, err
		}
		if got < len(b) {
			return uint16(got), nil
		}
	}
	return 0, unix.ENAMETOOLONG
}

// Connect implements lisafs.ControlFDImpl: sockets of the host are out of reach.
func (*node) Connect(uint32) (int, error) { return -1, unix.EPERM }

// ConnectWithCreds implements lisafs.ControlFDImpl.
func (*node) ConnectWithCreds(uint32, lisafs.UID, lisafs.GID) (int, error) { return -1, unix.EPERM }
