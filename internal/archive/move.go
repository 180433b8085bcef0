package archive

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// item is a name in an open directory.
type item struct {
	dir  int
	name string
}

// kind returns the type bits of the item, 0 when it is not there.
func (it item) kind() uint32 {
	var st unix.Stat_t
	if unix.Fstatat(it.dir, it.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}

// moveTo renames the item to to: a directory is merged with an existing one,
// another file replaces an existing file or link.
func (it item) moveTo(to item) error {
	if err := it.check(to); err != nil {
		return err
	}
	return it.rename(to)
}

// mergeInto moves everything in the directory it into the directory dir.
func (it item) mergeInto(dir int) error {
	if err := it.each(func(child item) error { return child.check(item{dir, child.name}) }); err != nil {
		return err
	}
	return it.each(func(child item) error { return child.rename(item{dir, child.name}) })
}

// check finds what would make rename fail half way.
func (it item) check(to item) error {
	from, old := it.kind(), to.kind()
	switch {
	case old == 0:
		return nil
	case from == unix.S_IFDIR && old == unix.S_IFDIR:
		return to.within(func(dir int) error {
			return it.each(func(child item) error { return child.check(item{dir, child.name}) })
		})
	case from == unix.S_IFDIR:
		return conflict(to.name, "a directory cannot replace what is none")
	case old == unix.S_IFDIR:
		return conflict(to.name, "a file cannot replace a directory")
	case old != unix.S_IFREG && old != unix.S_IFLNK:
		return conflict(to.name, "a device, FIFO or socket is not replaced")
	}
	return nil
}

func (it item) rename(to item) error {
	if it.kind() == unix.S_IFDIR && to.kind() == unix.S_IFDIR {
		return to.within(func(dir int) error {
			return it.each(func(child item) error { return child.rename(item{dir, child.name}) })
		})
	}
	return placeError(to.name, unix.Renameat(it.dir, it.name, to.dir, to.name))
}

// within opens the directory that the item is, through no link.
func (it item) within(f func(dir int) error) error {
	fd, err := openat(it.dir, it.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return placeError(it.name, err)
	}
	defer unix.Close(fd)
	return f(fd)
}

// each calls f for every entry of the directory that the item is.
func (it item) each(f func(child item) error) error {
	return it.within(func(dir int) error {
		names, err := readNames(dir)
		if err != nil {
			return placeError(it.name, err)
		}
		for _, n := range names {
			if err := f(item{dir, n}); err != nil {
				return err
			}
		}
		return nil
	})
}

// readNames lists an open directory from its beginning; the descriptor stays
// open.
func readNames(dir int) ([]string, error) {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return f.Readdirnames(-1)
}

func conflict(name, why string) error {
	return sandbox.Errorf(sandbox.Conflict, "%s; nothing was changed", why).WithField("destination", name).
		WithHint("remove or rename one of the two")
}

// Commit renames the directory name, in the open directory parent, to the name
// to, which must not exist, after everything in it has reached the disk.
func Commit(parent *os.File, name, to string) error {
	dir := int(parent.Fd())
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return placeError(name, err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return placeError(name, err)
	}
	err = unix.Renameat2(dir, name, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = unix.Renameat(dir, name, dir, to) // fails too when to is a directory with something in it
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return sandbox.Errorf(sandbox.AlreadyExists, "the name is taken").WithField("name", to)
	}
	if err != nil {
		return placeError(to, err)
	}
	return parent.Sync()
}

// Remove removes name from the open directory parent with all that is in it,
// following no link; directories whose mode forbids it included. A missing
// name is not an error.
func Remove(parent *os.File, name string) error {
	return removeBeneath(int(parent.Fd()), name)
}
