package archive

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resolve is how every path inside a tree is walked: not out of it and through
// no link of any kind.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openBeneath opens the path of parts beneath dir; with none, dir itself. No
// component may be a link, the last one included.
func openBeneath(dir int, parts []string, flags int, mode uint32) (int, error) {
	if len(parts) == 0 {
		parts = []string{"."}
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	name := strings.Join(parts, "/")
	for range 128 {
		fd, err := unix.Openat2(dir, name, &how)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // something was renamed meanwhile
			continue
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM) && flags&unix.O_CREAT == 0:
			return walkBeneath(dir, parts, flags, mode) // a kernel or a filter without openat2
		default:
			return -1, err
		}
	}
	return -1, unix.EAGAIN
}

// walkBeneath is openBeneath one component at a time. It is as safe, since no
// component is a link or '..', and slower.
func walkBeneath(dir int, parts []string, flags int, mode uint32) (int, error) {
	at := dir
	defer func() {
		if at != dir {
			unix.Close(at)
		}
	}()
	for i, part := range parts {
		f := unix.O_PATH | unix.O_DIRECTORY
		if i == len(parts)-1 {
			f = flags
		}
		fd, err := openat(at, part, f|unix.O_NOFOLLOW, mode)
		if err != nil {
			return -1, err
		}
		if at != dir {
			unix.Close(at)
		}
		at = dir
		if i == len(parts)-1 {
			return fd, nil
		}
		at = fd
	}
	return -1, unix.EINVAL
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// mkdirsBeneath opens the directory of parts beneath dir and makes what is
// missing of it. made is told of each directory that was made.
func mkdirsBeneath(dir int, parts []string, made func(parts []string)) (int, error) {
	fd, err := openBeneath(dir, parts, unix.O_PATH|unix.O_DIRECTORY, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if len(parts) == 0 {
		return -1, err
	}
	parent, err := mkdirsBeneath(dir, parts[:len(parts)-1], made)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	last := parts[len(parts)-1]
	switch err := unix.Mkdirat(parent, last, 0o700); {
	case err == nil:
		made(parts)
	case !errors.Is(err, unix.EEXIST):
		return -1, err
	}
	return openBeneath(parent, parts[len(parts)-1:], unix.O_PATH|unix.O_DIRECTORY, 0)
}

// procPath names an open descriptor as a path, for calls that take no O_PATH
// descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// removeBeneath removes name from the directory dir with all that is in it,
// following no link. A missing name is not an error.
func removeBeneath(dir int, name string) error {
	switch err := unix.Unlinkat(dir, name, 0); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return err
	}
	fd, err := openDirForRemoval(dir, name)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if err := removeBeneath(fd, n); err != nil {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			break
		}
		if _, err := f.Seek(0, 0); err != nil { // deleting moves the reading position on some file systems
			return err
		}
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// openDirForRemoval opens a directory of ours whose mode may forbid it.
func openDirForRemoval(dir int, name string) (int, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	fd, err := openat(dir, name, flags, 0)
	if err == nil && unix.Geteuid() != 0 {
		unix.Fchmod(fd, 0o700) // not fatal: removing says so if it matters
	}
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	p, perr := openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if perr != nil {
		return -1, perr
	}
	defer unix.Close(p)
	if unix.Chmod(procPath(p), 0o700) != nil {
		return -1, err
	}
	return openat(dir, name, flags, 0)
}
