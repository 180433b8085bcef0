package sharefs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// mayComplete decides whether the directory n may get the second of the two
// entries that make it a repository; sibling is the other one. From then on git
// believes its config, so config must pass now, and nobody may hold a way to
// write to the file that passed: it is replaced by a copy.
func (n *node) mayComplete(sibling string) error {
	if !exists(n.fd, sibling) {
		return nil
	}
	if exists(n.fd, "commondir") || exists(n.fd, "config.worktree") {
		return unix.EROFS
	}
	if err := n.checkHooks(); err != nil {
		return err
	}
	return n.sealConfig("config")
}

// checkHooks lets nothing pass but an absent hooks directory and one with
// samples only.
func (n *node) checkHooks() error {
	fd, err := openEntry(n.fd, "hooks", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return unix.EROFS
	}
	defer unix.Close(fd)
	budget := 1000
	return eachEntry(fd, func(name string, typ uint8) error {
		if budget--; budget < 0 || typ != unix.DT_REG || !workspace.SampleHook(name) {
			return unix.EROFS
		}
		return nil
	})
}

// sealConfig replaces a configuration that passes by a copy that nobody has
// open. An absent one, or a directory, which git cannot read, passes as it is.
func (n *node) sealConfig(name string) error {
	var st unix.Statx_t
	err := stat(n.fd, name, &st)
	if errors.Is(err, unix.ENOENT) || err == nil && isType(&st, unix.S_IFDIR) {
		return nil
	}
	if err != nil {
		return unix.EROFS
	}
	data, mode, err := n.readConfig(name)
	if err != nil {
		return err
	}
	const temporary = "config.lock" // as git calls it
	if err := n.putConfig(temporary, data, mode); err != nil {
		return unix.EROFS
	}
	if err := unix.Renameat2(n.fd, temporary, n.fd, name, 0); err != nil {
		n.undo(temporary, 0)
		return unix.EROFS
	}
	return nil
}

// readConfig reads a configuration and lets it pass or returns EROFS.
func (n *node) readConfig(name string) (data []byte, mode uint32, err error) {
	fd, err := openEntry(n.fd, name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, 0, unix.EROFS
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := stat(fd, "", &st); err != nil || !isType(&st, unix.S_IFREG) || st.Size > workspace.MaxGitConfig {
		return nil, 0, unix.EROFS
	}
	buf := make([]byte, workspace.MaxGitConfig+1)
	got, err := transfer(buf, 0, func(b []byte, at int64) (int, error) { return unix.Pread(fd, b, at) })
	if err != nil {
		return nil, 0, err
	}
	dir := n.conn.relative(n.Node().FilePath())
	if workspace.CheckGitConfig(buf[:got], dir) != nil {
		return nil, 0, unix.EROFS
	}
	return buf[:got], uint32(st.Mode) & 0o777, nil
}

// putConfig writes a new file, which must not be there.
func (n *node) putConfig(name string, data []byte, mode uint32) error {
	fd, err := openEntry(n.fd, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = n.conn.give(fd)
	if err == nil {
		var put uint64
		put, err = transfer(data, 0, func(b []byte, at int64) (int, error) { return unix.Pwrite(fd, b, at) })
		if err == nil && put != uint64(len(data)) {
			err = unix.ENOSPC
		}
	}
	if err != nil {
		n.undo(name, 0)
	}
	return err
}

// renameConfig does what git means by renaming config.lock to config: the
// content that passed gets the name, in a file that nobody has open.
func (n *node) renameConfig(oldName, newName string) error {
	data, mode, err := n.readConfig(oldName)
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(n.fd, oldName, 0); err != nil {
		return err
	}
	if err := n.putConfig(oldName, data, mode); err != nil {
		return err
	}
	return unix.Renameat2(n.fd, oldName, n.fd, newName, 0)
}
