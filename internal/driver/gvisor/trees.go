package gvisor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// readOnly is what every lower layer is: the sentry only ever reads it, and
// whatever set-user-ID bit or device it holds means nothing to the host.
const readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// openTree clones the mount at path, without what is mounted below it, as a
// detached, read-only tree.
func openTree(path string) (*os.File, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err == unix.EINVAL {
		// In a user namespace the mounts below cannot be left out when they are
		// locked together with this one: taken along, they show no more than
		// the user sees anyway.
		fd, err = unix.OpenTree(unix.AT_FDCWD, path, flags|unix.AT_RECURSIVE)
	}
	if err != nil {
		return nil, treeError("open_tree", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	attr := &unix.MountAttr{Attr_set: readOnly, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		f.Close()
		return nil, treeError("mount_setattr", path, err)
	}
	return f, nil
}

// idmap gives the ids on disk of a detached tree the meaning that user
// namespace ns gives them.
func idmap(tree, ns *os.File) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, attr); err != nil {
		return sandbox.Errorf(sandbox.Unsupported, "the file system of this directory cannot map owners: %w", err).
			WithField("path", tree.Name()).
			WithHint("keep it on ext4, xfs, btrfs or tmpfs with Linux 5.12 (tmpfs: 6.3) or later")
	}
	return nil
}

func treeError(op, path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return sandbox.Errorf(sandbox.Unsupported, "this kernel has no %s", op).WithHint("Linux 5.12 or later is needed")
	case errors.Is(err, unix.EPERM):
		return sandbox.Errorf(sandbox.Unsupported, "%s is not permitted here: %w", op, err).
			WithHint("the keeper needs a mount namespace of its own, in which it holds CAP_SYS_ADMIN")
	}
	return fmt.Errorf("%s %s: %w", op, path, err)
}

// openTreeWhole clones the mount at path and all below it as a detached,
// read-only tree.
func openTreeWhole(path string) (*os.File, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err != nil {
		return nil, treeError("open_tree", path, err)
	}
	f := os.NewFile(uintptr(fd), "root")
	attr := &unix.MountAttr{Attr_set: readOnly, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		f.Close()
		return nil, treeError("mount_setattr", path, err)
	}
	return f, nil
}
