package filetree

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Lower looks at what a template has at a path, with the caller's rights: no
// component of a path is followed out of the template or through a link. It is
// not safe for concurrent use.
type Lower struct {
	places []place // a later one covers an earlier one
}

type place struct {
	target string // absolute; "/" for the root
	fd     int
}

// OpenLower opens a root for looking at. Lay puts more of the
// installation's choosing over it.
func OpenLower(root string) (*Lower, error) {
	l := &Lower{}
	return l, l.Lay(root, "/")
}

// Lay covers target, and all below it, with source.
func (l *Lower) Lay(source, target string) error {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: source, Err: err}
	}
	l.places = append(l.places, place{target, fd})
	return nil
}

// Close lets go of what was opened.
func (l *Lower) Close() {
	for _, p := range l.places {
		unix.Close(p.fd)
	}
	l.places = nil
}

// at returns the place that a path is in and its name there.
func (l *Lower) at(path string) (place, string) {
	for i := len(l.places) - 1; i >= 0; i-- {
		p := l.places[i]
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(p.target, "/")); ok && (rest == "" || rest[0] == '/') {
			return p, strings.TrimPrefix(rest, "/")
		}
	}
	return place{fd: -1}, ""
}

func (l *Lower) open(path string, flags int) (int, error) {
	p, name := l.at(path)
	if p.fd < 0 {
		return -1, unix.EBADF
	}
	if name == "" {
		if flags&unix.O_PATH != 0 {
			return unix.Dup(p.fd)
		}
		name = "."
	}
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(p.fd, name, how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// Type tells what the template has at a path: "" for nothing.
func (l *Lower) Type(path string) (Type, error) {
	fd, err := l.open(path, unix.O_PATH)
	if err != nil {
		return "", missing(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return Dir, nil
	case unix.S_IFLNK:
		return Symlink, nil
	case unix.S_IFIFO:
		return Fifo, nil
	case unix.S_IFCHR:
		return Char, nil
	case unix.S_IFBLK:
		return Block, nil
	}
	return File, nil
}

// Names lists the directory that the template has at a path.
func (l *Lower) Names(path string) ([]string, error) {
	fd, err := l.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, missing(err)
	}
	f := os.NewFile(uintptr(fd), "directory of a template")
	defer f.Close()
	return f.Readdirnames(-1)
}

// missing is nil for the errors of a path that is not there: behind a link, or
// below what is no directory, is nothing of this template's.
func missing(err error) error {
	for _, none := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG} {
		if errors.Is(err, none) {
			return nil
		}
	}
	return err
}
