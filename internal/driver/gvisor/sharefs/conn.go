package sharefs

import (
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// conn serves one share to one sandbox.
type conn struct {
	Share
	procFD int
	owners []Owner // host identities that are the caller

	made  *madeDirs
	began int64 // nanoseconds since 1970; younger files were made meanwhile

	once      sync.Once // sets the rest, before anything else is served
	mountPath string    // in this process's root
	donate    bool
	perEntry  bool // entries may lie on other devices than their directory
}

var _ lisafs.ConnectionImpl = (*conn)(nil)

// newConn returns the server of a share. procFD is the process's own
// /proc/self/fd and stays open; self is whom its files belong to.
func newConn(sh Share, procFD int, self Owner, made *madeDirs) *conn {
	c := &conn{Share: sh, procFD: procFD, owners: []Owner{self}, made: made, began: time.Now().UnixNano()}
	switch {
	case sh.Owner == nil:
	case *sh.Owner == self:
		c.Owner = nil
	default:
		c.owners = append(c.owners, *sh.Owner)
	}
	return c
}

// Mount implements lisafs.ConnectionImpl. It donates nothing: a sentry that
// counts on opening files itself fails here.
func (c *conn) Mount(lc *lisafs.Connection, at *lisafs.Node) (*lisafs.ControlFD, lisafs.Statx, int, error) {
	path := at.FilePath()
	fd, err := openAbs(path)
	if err != nil {
		return nil, lisafs.Statx{}, -1, err
	}
	var st unix.Statx_t
	if err := c.adoptMount(fd, path, &st); err != nil {
		unix.Close(fd)
		return nil, lisafs.Statx{}, -1, err
	}
	root := &node{fd: fd, conn: c, root: true, id: keyOf(&st)}
	at.IncRef() // for the control FD
	root.ControlFD.Init(lc, at, linux.FileMode(st.Mode), root)
	return root.FD(), c.attrs(&st), -1, nil
}

// adoptMount looks at what is mounted before anything of it is served.
func (c *conn) adoptMount(fd int, path string, st *unix.Statx_t) error {
	if err := stat(fd, "", st); err != nil {
		return err
	}
	if !isType(st, unix.S_IFDIR) && !isType(st, unix.S_IFREG) {
		return unix.EPERM
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	c.once.Do(func() {
		c.mountPath = path
		c.donate = c.Donate && (!c.ReadOnly || fs.Flags&unix.ST_RDONLY != 0)
		c.perEntry = fs.Type == unix.OVERLAYFS_SUPER_MAGIC || fs.Type == unix.BTRFS_SUPER_MAGIC
	})
	return nil
}

// relative turns a path in this process's root into one beneath the share.
func (c *conn) relative(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, c.mountPath), "/")
}

// MaxMessageSize implements lisafs.ConnectionImpl.
func (*conn) MaxMessageSize() uint32 { return lisafs.MaxMessageSize() }

// SupportedMessages implements lisafs.ConnectionImpl. Those about sockets are
// among them because the sentry must hear EPERM to keep a socket to itself.
func (*conn) SupportedMessages() []lisafs.MID {
	return []lisafs.MID{
		lisafs.Mount, lisafs.Channel, lisafs.FStat, lisafs.SetStat, lisafs.Walk, lisafs.WalkStat,
		lisafs.OpenAt, lisafs.OpenCreateAt, lisafs.Close, lisafs.FSync, lisafs.PWrite, lisafs.PRead,
		lisafs.MkdirAt, lisafs.MknodAt, lisafs.SymlinkAt, lisafs.LinkAt, lisafs.FStatFS,
		lisafs.FAllocate, lisafs.ReadLinkAt, lisafs.UnlinkAt, lisafs.RenameAt, lisafs.RenameAt2,
		lisafs.Getdents64, lisafs.FGetXattr, lisafs.FSetXattr, lisafs.FListXattr, lisafs.FRemoveXattr,
		lisafs.BindAt, lisafs.Connect, lisafs.ConnectWithCreds,
	}
}

// ours tells whether the caller owns the file on the host.
func (c *conn) ours(st *unix.Statx_t) bool {
	for _, o := range c.owners {
		if st.Uid == o.UID {
			return true
		}
	}
	return false
}

// ids are the owner and group that a file seems to have. The group of a file
// that the caller owns is of no interest inside: its owner may do with the file
// what the group may.
func (c *conn) ids(st *unix.Statx_t) (uid, gid uint32) {
	if c.ours(st) {
		return c.UID, c.GID
	}
	for _, o := range c.owners {
		if st.Gid == o.GID {
			return Nobody, c.GID
		}
	}
	return Nobody, Nobody
}

// visibleMode is the mode that a guest sees.
func visibleMode(mode uint16) uint16 {
	mode &^= setID
	if mode&unix.S_IFMT != unix.S_IFDIR {
		mode &^= unix.S_ISVTX
	}
	return mode
}

func timestamp(t unix.StatxTimestamp) lisafs.StatxTimestamp {
	return lisafs.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

// attrs are the attributes that a guest sees.
func (c *conn) attrs(st *unix.Statx_t) lisafs.Statx {
	uid, gid := c.ids(st)
	return lisafs.Statx{
		Mask: st.Mask, Blksize: st.Blksize, Nlink: st.Nlink, UID: uid, GID: gid, Mode: visibleMode(st.Mode),
		Ino: st.Ino, Size: st.Size, Blocks: st.Blocks,
		Atime: timestamp(st.Atime), Btime: timestamp(st.Btime), Ctime: timestamp(st.Ctime), Mtime: timestamp(st.Mtime),
		RdevMajor: st.Rdev_major, RdevMinor: st.Rdev_minor, DevMajor: st.Dev_major, DevMinor: st.Dev_minor,
	}
}

// foreignAttrs are the attributes of an entry that is another mount's: of what
// kind it is, and that nobody may do anything with it.
func foreignAttrs(st *unix.Statx_t) lisafs.Statx {
	return lisafs.Statx{
		Mask: unix.STATX_BASIC_STATS, Blksize: st.Blksize, Nlink: 1, UID: Nobody, GID: Nobody, Mode: st.Mode & unix.S_IFMT,
		Ino: st.Ino, DevMajor: st.Dev_major, DevMinor: st.Dev_minor,
	}
}

// attrsOf chooses between the two, for an entry looked up by name.
func (c *conn) attrsOf(st *unix.Statx_t, foreign bool) lisafs.Statx {
	if foreign {
		return foreignAttrs(st)
	}
	return c.attrs(st)
}

// node is a control FD: one file at one place.
//
// What a name says changes in Renamed only, which excludes everything else.
type node struct {
	lisafs.ControlFD
	conn    *conn
	fd      int // O_PATH
	id      key
	root    bool
	foreign bool // lies in another mount
	name    string
	zone    workspace.Zone
	// entry is what the name means in a repository; inHooks tells that the
	// directory is called hooks.
	entry   workspace.GitEntry
	inHooks bool
	// made tells that this sandbox made the directory; for other files, the
	// directory that they are in.
	made bool
}

var _ lisafs.ControlFDImpl = (*node)(nil)

// FD implements lisafs.ControlFDImpl.
func (n *node) FD() *lisafs.ControlFD {
	if n == nil {
		return nil
	}
	return &n.ControlFD
}

// Close implements lisafs.ControlFDImpl.
func (n *node) Close() {
	unix.Close(n.fd)
	n.fd = -1
}

// adopt makes the control FD of an entry in n. It takes over fd.
func (n *node) adopt(fd int, name string, st *unix.Statx_t, foreign bool) *node {
	parent := n.Node()
	var at *lisafs.Node
	parent.WithChildrenMu(func() {
		if at = parent.LookupChildLocked(name); at != nil {
			at.IncRef()
			return
		}
		at = &lisafs.Node{}
		at.InitLocked(name, parent)
	})
	child := &node{conn: n.conn, fd: fd, id: keyOf(st), name: name, foreign: foreign}
	if n.conn.Protect {
		child.zone, child.entry, child.inHooks = n.zone.Child(name), workspace.GitEntryOf(name), n.entry == workspace.EntryHooks
		child.made = n.made
		if isType(st, unix.S_IFDIR) {
			child.made = n.conn.made.has(child.id)
		}
	}
	child.ControlFD.Init(n.Conn(), at, linux.FileMode(st.Mode), child)
	return child
}
