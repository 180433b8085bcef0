package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/sharefs"
	"github.com/belljar-sh/belljar/sandbox"
)

// share is one of the caller's directories or files.
type share struct {
	tree    *os.File // detached
	target  string
	ro      bool
	dir     bool
	options []string // what gVisor must know of the host's file system
}

// shareName names a share in the gofer's own root, and with [GoferStage] before
// it where its tree is staged.
func shareName(n int) string { return "/share" + strconv.Itoa(n) }

// openShare clones the mount at an open file as a detached tree.
func openShare(m driver.Mount) (*share, error) {
	tree, err := cloneOpen(m.File)
	if err != nil {
		return nil, err
	}
	s := &share{tree: tree, target: m.Target, ro: m.ReadOnly}
	if err := s.inspect(); err != nil {
		tree.Close()
		return nil, err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		tree.Close()
		return nil, treeError("mount_setattr", m.File.Name(), err)
	}
	return s, nil
}

// cloneOpen clones the mount at f. A descriptor from another mount namespace,
// as those from the command line are, cannot be cloned: then its path is opened
// here, through no link, and must be the same file.
func cloneOpen(f *os.File) (*os.File, error) {
	const flags = unix.AT_EMPTY_PATH | unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	fd, err := unix.OpenTree(int(f.Fd()), "", flags)
	if err == nil {
		return os.NewFile(uintptr(fd), f.Name()), nil
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, err
	}
	here, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, shareError(path, err)
	}
	defer unix.Close(here)
	if !sameFile(here, int(f.Fd())) {
		return nil, shareError(path, fmt.Errorf("another file has this path"))
	}
	fd, err = unix.OpenTree(here, "", flags)
	if err == unix.EINVAL { // mounts below it that this user may not take off
		fd, err = unix.OpenTree(here, "", flags|unix.AT_RECURSIVE)
	}
	if err != nil {
		return nil, treeError("open_tree", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func shareError(path string, err error) error {
	return sandbox.Errorf(sandbox.Invalid, "the volume is not to be found where it was opened: %w", err).
		WithField("volume", path).WithHint("it must not be moved, replaced or mounted over while the sandbox starts")
}

func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// inspect looks at what kind of file and of file system is shared.
func (s *share) inspect() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.tree.Fd()), &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.dir = true
	case unix.S_IFREG:
	default:
		return sandbox.Errorf(sandbox.Invalid, "only directories and regular files can be mounted").WithField("volume", s.tree.Name())
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(s.tree.Fd()), &fs); err != nil {
		return err
	}
	switch fs.Type {
	case unix.OVERLAYFS_SUPER_MAGIC:
		s.options = append(s.options, "overlayfs_stale_read")
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		s.options = append(s.options, "disable_file_handle_sharing")
	}
	return nil
}

// mapOwner makes whoever owns the share on the host be the gofer's own user,
// and nobody else anybody.
func (c *creation) mapOwner(s *share) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.tree.Fd()), &st); err != nil {
		return err
	}
	ns, err := c.d.userNamespace(
		syscall.SysProcIDMap{ContainerID: int(st.Uid), HostID: int(c.ids.UIDs[0].Outside), Size: 1},
		syscall.SysProcIDMap{ContainerID: int(st.Gid), HostID: int(c.ids.GIDs[0].Outside), Size: 1})
	if err != nil {
		return fmt.Errorf("user namespace of a volume: %w", err)
	}
	defer ns.Close()
	return idmap(s.tree, ns)
}

// userNamespace returns a user namespace with one user and one group. A process
// is needed to make one; it is gone when this returns.
func (d *Driver) userNamespace(uid, gid syscall.SysProcIDMap) (*os.File, error) {
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", engineFD), Args: []string{"belljar-engine", "version"}, Env: []string{},
		ExtraFiles: []*os.File{d.engine},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{uid}, GidMappings: []syscall.SysProcIDMap{gid},
			Pdeathsig: syscall.SIGKILL,
		},
	}
	if err := d.spawn.start(cmd, nil); err != nil {
		return nil, err
	}
	defer cmd.Process.Wait()
	defer cmd.Process.Kill()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
}

// openShares opens the request's mounts.
func (c *creation) openShares() error {
	for _, m := range c.req.Mounts {
		s, err := openShare(m)
		if err != nil {
			return err
		}
		c.shares = append(c.shares, s)
		c.onUndo(func() { s.tree.Close() })
		if !c.ids.OwnRange {
			continue
		}
		if err := c.mapOwner(s); err != nil {
			return err
		}
	}
	return nil
}

// addShares adds the shares to a role's spec: mounts, and how they are served.
func (c *creation) addShares(spec *specs.Spec, destination func(n int) string) error {
	var all []sharefs.Share
	for n, s := range c.shares {
		mode := "rw"
		if s.ro {
			mode = "ro"
		}
		source := GoferStage + shareName(n)
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: destination(n), Type: "bind", Source: source,
			Options: append([]string{"rbind", mode, "nosuid", "nodev"}, s.options...),
		})
		all = append(all, sharefs.Share{
			Source: source, ReadOnly: s.ro, UID: c.req.User.UID, GID: c.req.User.GID,
			Protect: true, Donate: true, // the roles install hostfilter
		})
	}
	if len(all) == 0 {
		return nil
	}
	return sharefs.Annotate(spec, all)
}
