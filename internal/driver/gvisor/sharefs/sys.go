package sharefs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setID are the mode bits that no file gets here.
const setID = unix.S_ISUID | unix.S_ISGID

// maxName is NAME_MAX of Linux.
const maxName = 255

// checkName refuses what is not the name of one entry. lisafs checks most of it
// too.
func checkName(name string) error {
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return unix.EINVAL
	case len(name) > maxName:
		return unix.ENAMETOOLONG
	}
	return nil
}

// openProcFD opens the first path that is this process's table of descriptors.
func openProcFD(paths ...string) (int, error) {
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if isProcFD(fd) {
			return fd, nil
		}
		unix.Close(fd)
	}
	return -1, fmt.Errorf("sharefs: none of %s is /proc/self/fd", strings.Join(paths, ", "))
}

// isProcFD finds out whether the entry for fd in fd leads to itself.
func isProcFD(fd int) bool {
	var self, entry unix.Stat_t
	if unix.Fstat(fd, &self) != nil || unix.Fstatat(fd, strconv.Itoa(fd), &entry, 0) != nil {
		return false
	}
	return self.Dev == entry.Dev && self.Ino == entry.Ino
}

// resolve is how a name is looked up: no way out, through no link of any kind.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openat2 repeats what a signal or a rename elsewhere interrupted.
func openat2(dir int, path string, how unix.OpenHow) (int, error) {
	how.Flags |= unix.O_CLOEXEC
	for range 64 {
		fd, err := unix.Openat2(dir, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

// openPath returns a descriptor that names the entry and can do nothing else.
// foreign tells that the entry lies in another mount.
func openPath(dir int, name string) (fd int, foreign bool, err error) {
	if err := checkName(name); err != nil {
		return -1, false, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW, Resolve: resolve | unix.RESOLVE_NO_XDEV}
	fd, err = openat2(dir, name, how)
	if errors.Is(err, unix.EXDEV) {
		how.Resolve = resolve
		fd, err = openat2(dir, name, how)
		return fd, err == nil, err
	}
	return fd, false, err
}

// openEntry opens an entry for reading or creates it.
func openEntry(dir int, name string, flags int, mode uint32) (int, error) {
	if err := checkName(name); err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY), Resolve: resolve | unix.RESOLVE_NO_XDEV}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode & 0o775) // nobody else on the host may write
	}
	return openat2(dir, name, how)
}

// openAbs opens a directory by its path in this process's root, through no link.
func openAbs(path string) (int, error) {
	return openat2(unix.AT_FDCWD, path, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// reopen opens what fd names again, with other flags.
func (c *conn) reopen(fd, flags int) (int, error) {
	for {
		got, err := unix.Openat(c.procFD, strconv.Itoa(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if !errors.Is(err, unix.EINTR) {
			return got, err
		}
	}
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// stat reads the attributes of the entry name in dir, or of dir itself when
// name is empty. It follows no link.
func stat(dir int, name string, st *unix.Statx_t) error {
	return unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statMask, st)
}

// exists tells whether a directory has an entry. When that cannot be told, it
// has.
func exists(dir int, name string) bool {
	var st unix.Statx_t
	return !errors.Is(stat(dir, name, &st), unix.ENOENT)
}

func isType(st *unix.Statx_t, typ uint16) bool { return st.Mode&unix.S_IFMT == typ }

// key names an inode for as long as it exists, and after that no other one,
// where the file system records times of birth.
type key struct {
	ino          uint64
	major, minor uint32
	born         int64
}

func keyOf(st *unix.Statx_t) key {
	k := key{ino: st.Ino, major: st.Dev_major, minor: st.Dev_minor}
	if st.Mask&unix.STATX_BTIME != 0 {
		k.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return k
}
