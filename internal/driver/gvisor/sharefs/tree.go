package sharefs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/fsutil"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// maxTreeEntries bounds what is looked at before a directory is renamed. A rename
// excludes every other operation of the sandbox meanwhile; past the bound the
// answer is EXDEV, upon which mv copies file by file, each of them checked.
const maxTreeEntries = 50_000

// maxTreeDepth bounds the recursion.
const maxTreeDepth = 256

// treeCheck looks through a directory that is about to be renamed.
type treeCheck struct {
	conn     *conn
	from, to workspace.Zone
	budget   int
	// checkFrom looks for protected names where the directory is, checkTo for
	// such as there would be where it goes.
	checkFrom, checkTo bool
	// demote are directories that will no longer count as made by the sandbox.
	demote []key
	// fromPath and toPath are where the tree is and where it goes; gone are the
	// paths of the caller's directories in it.
	fromPath, toPath string
	gone             []string
}

// run checks the tree that is the entry name of dir.
func (t *treeCheck) run(dir int, name string) error {
	return t.walk(dir, name, "", t.from, t.to, 0)
}

func (t *treeCheck) walk(dir int, name, at string, from, to workspace.Zone, depth int) error {
	if depth > maxTreeDepth {
		return unix.EXDEV
	}
	fd, err := openEntry(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return unknown(err)
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := stat(fd, "", &st); err != nil {
		return err
	}
	if t.checkFrom && !from.InDependencies() && !t.conn.made.has(keyOf(&st)) {
		t.gone = append(t.gone, path.Join(t.fromPath, at))
	}
	if t.checkTo {
		t.demote = append(t.demote, keyOf(&st))
	}
	return eachEntry(fd, func(name string, typ uint8) error {
		if t.budget--; t.budget < 0 {
			return unix.EXDEV
		}
		f, u, below := from.Child(name), to.Child(name), path.Join(at, name)
		if t.checkTo && typ != unix.DT_DIR && !to.InDependencies() && t.conn.made.linkTakesPlace(key{}, name, path.Join(t.toPath, below)) {
			if err := t.refuseLink(fd, name); err != nil {
				return err
			}
		}
		descend, err := t.judge(fd, name, f, u)
		if err != nil || !descend || typ != unix.DT_DIR && typ != unix.DT_UNKNOWN {
			return err
		}
		err = t.walk(fd, name, below, f, u, depth+1)
		if typ == unix.DT_UNKNOWN && errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return err
	})
}

// refuseLink refuses an entry that takes a directory's place if it is a link.
func (t *treeCheck) refuseLink(dir int, name string) error {
	var st unix.Statx_t
	if err := stat(dir, name, &st); err != nil {
		return err
	}
	return permit(isType(&st, unix.S_IFREG) || isType(&st, unix.S_IFDIR))
}

// judge decides about one entry and whether to look into it.
func (t *treeCheck) judge(dir int, name string, from, to workspace.Zone) (descend bool, err error) {
	if from.Kind() == workspace.GitDir || to.Kind() == workspace.GitDir {
		// A repository is safe wherever it stands; one of the caller's stays.
		var st unix.Statx_t
		if err := stat(dir, name, &st); err != nil {
			return false, err
		}
		return false, permit(!t.checkFrom || isType(&st, unix.S_IFDIR) && t.conn.made.has(keyOf(&st)))
	}
	if t.checkFrom && from.Locked() || t.checkTo && to.Locked() {
		return false, unix.EROFS
	}
	return true, nil
}

// unknown is the answer about a directory that cannot be looked into: another
// mount, or one that the caller may not read.
func unknown(err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return unix.EROFS
}

// eachEntry calls f for each entry of an open directory until it fails.
func eachEntry(fd int, f func(name string, typ uint8) error) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n <= 0 {
			return err
		}
		fsutil.ParseDirents(buf[:n], func(_ uint64, _ int64, typ uint8, name string, _ uint16) {
			if err == nil {
				err = f(name, typ)
			}
		})
		if err != nil {
			return err
		}
	}
}
