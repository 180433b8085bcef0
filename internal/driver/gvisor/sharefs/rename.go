package sharefs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// Unlink implements lisafs.ControlFDImpl.
func (n *node) Unlink(name string, flags uint32) error {
	if err := n.mayWriteIn(name); err != nil {
		return err
	}
	if flags&^unix.AT_REMOVEDIR != 0 {
		return unix.EINVAL
	}
	var st unix.Statx_t
	if n.conn.Protect {
		if err := stat(n.fd, name, &st); err != nil {
			return err
		}
		if err := n.mayRemove(name, &st); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(n.fd, name, int(flags)); err != nil {
		return err
	}
	if n.conn.Protect && isType(&st, unix.S_IFDIR) {
		n.noteGone(name, &st)
	}
	return nil
}

// noteGone notes that a directory was removed.
func (n *node) noteGone(name string, st *unix.Statx_t) {
	if !n.conn.made.has(keyOf(st)) {
		n.conn.lose(n, name)
	}
	n.conn.made.remove(keyOf(st))
}

// lose notes that a directory of the caller's is no longer an entry of dir.
func (c *conn) lose(dir *node, name string) {
	if dir.zone.InDependencies() {
		return // no name is protected there
	}
	c.made.lose(dir.id, name)
	c.made.losePath(path.Join(dir.Node().FilePath(), name))
}

// RenameAt implements lisafs.ControlFDImpl.
func (n *node) RenameAt(oldName string, newDir lisafs.ControlFDImpl, newName string) error {
	return n.RenameAt2(oldName, newDir, newName, 0)
}

// RenameAt2 implements lisafs.ControlFDImpl.
func (n *node) RenameAt2(oldName string, newDir lisafs.ControlFDImpl, newName string, flags uint32) error {
	to, ok := newDir.(*node)
	if !ok {
		return unix.EXDEV
	}
	if err := n.mayWriteIn(oldName); err != nil {
		return err
	}
	if err := to.mayWriteIn(newName); err != nil {
		return err
	}
	if flags != 0 && flags != unix.RENAME_NOREPLACE && flags != unix.RENAME_EXCHANGE {
		return unix.EINVAL // a whiteout would be a device
	}
	if !n.conn.Protect {
		return unix.Renameat2(n.fd, oldName, to.fd, newName, uint(flags))
	}
	if flags == unix.RENAME_EXCHANGE {
		return n.exchange(oldName, to, newName)
	}
	return n.move(oldName, to, newName, flags)
}

// move renames one entry, which may replace another.
func (n *node) move(oldName string, to *node, newName string, flags uint32) error {
	var st, target unix.Statx_t
	if err := stat(n.fd, oldName, &st); err != nil {
		return err
	}
	if err := n.mayRemove(oldName, &st); err != nil {
		return err
	}
	err := stat(to.fd, newName, &target)
	replaces := err == nil
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return err
	case replaces && flags&unix.RENAME_NOREPLACE != 0:
		return unix.EEXIST
	case replaces:
		if err := to.mayRemove(newName, &target); err != nil {
			return err
		}
	}
	if to.kindIn(newName) == workspace.GitConfig {
		return n.moveConfig(oldName, &st, to, newName)
	}
	if err := to.mayCreate(newName, movedForm(&st)); err != nil {
		return err
	}
	if !isType(&st, unix.S_IFDIR) {
		return unix.Renameat2(n.fd, oldName, to.fd, newName, uint(flags))
	}
	return n.moveDir(oldName, &st, to, newName, replaces && !n.conn.made.has(keyOf(&target)), flags)
}

func movedForm(st *unix.Statx_t) form {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return asMovedFile
	case unix.S_IFDIR:
		return asMovedDir
	case unix.S_IFLNK:
		return asSymlink
	default:
		return asMovedOther
	}
}

// moveConfig puts a configuration in place as git does, within one directory.
func (n *node) moveConfig(oldName string, st *unix.Statx_t, to *node, newName string) error {
	if to.id != n.id || !to.made || !isType(st, unix.S_IFREG) {
		return unix.EROFS
	}
	return n.renameConfig(oldName, newName)
}

// exchange swaps two entries. Directories of the caller are not swapped: every
// path below them would have to be judged twice.
func (n *node) exchange(oldName string, to *node, newName string) error {
	var a, b unix.Statx_t
	if err := stat(n.fd, oldName, &a); err != nil {
		return err
	}
	if err := stat(to.fd, newName, &b); err != nil {
		return err
	}
	for _, st := range []*unix.Statx_t{&a, &b} {
		if isType(st, unix.S_IFDIR) && (!n.conn.made.has(keyOf(st)) || !n.made || !to.made) {
			return unix.EROFS
		}
	}
	for _, err := range []error{
		n.mayRemove(oldName, &a), to.mayRemove(newName, &b),
		n.mayCreate(oldName, movedForm(&b)), to.mayCreate(newName, movedForm(&a)),
	} {
		if err != nil {
			return err
		}
	}
	return unix.Renameat2(n.fd, oldName, to.fd, newName, unix.RENAME_EXCHANGE)
}

// moveDir renames a directory. takesPlace tells that it replaces an empty one of
// the caller's.
func (n *node) moveDir(oldName string, st *unix.Statx_t, to *node, newName string, takesPlace bool, flags uint32) error {
	c := n.conn
	made := c.made.has(keyOf(st))
	t := treeCheck{conn: c, from: n.zone.Child(oldName), to: to.zone.Child(newName), budget: maxTreeEntries,
		fromPath: path.Join(n.Node().FilePath(), oldName), toPath: path.Join(to.Node().FilePath(), newName)}
	t.checkFrom = !made && !(t.from.InDependencies() && t.to.InDependencies())
	t.checkTo = !to.made && (takesPlace || t.to.Partial() || c.made.takesPlace(to.id, newName))
	if t.checkFrom || t.checkTo {
		if err := t.run(n.fd, oldName); err != nil {
			return err
		}
	}
	if err := unix.Renameat2(n.fd, oldName, to.fd, newName, uint(flags)); err != nil {
		return err
	}
	if !made {
		c.lose(n, oldName)
		for _, p := range t.gone {
			c.made.losePath(p)
		}
	}
	for _, k := range t.demote {
		c.made.add(k, true)
	}
	return nil
}
