package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// entry is a directory entry that is worth a look: a name of the list, a link,
// a special file or a repository.
type entry struct {
	path, name string
	dir        int // descriptor of its directory
	zone       Zone
	st         unix.Statx_t
	repository bool
	covered    bool // something above it stands for it
	cover      bool // set by visit: it stands for what is below
}

func (e *entry) typ() uint16  { return e.st.Mode & unix.S_IFMT }
func (e *entry) ctime() int64 { return e.st.Ctime.Sec*1e9 + int64(e.st.Ctime.Nsec) }

// walker goes through a tree by descriptors.
type walker struct {
	ctx        context.Context
	visit      func(*entry)
	entries    int
	incomplete string
}

// errStop ends a walk that has reached a bound.
var errStop = errors.New("stop")

func (w *walker) run(root *os.File) error {
	f, err := openDir(int(root.Fd()), ".")
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	var z Zone
	if isRepository(int(f.Fd())) {
		z = gitZone
	}
	err = w.walk(f, "", z, false, 0)
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// openDir opens a directory for reading, through no link and into no other
// mount.
func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (w *walker) stop(why string) error {
	w.incomplete = why
	return errStop
}

// walk visits the entries of dir, which it closes.
func (w *walker) walk(dir *os.File, at string, z Zone, covered bool, depth int) error {
	defer dir.Close()
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return w.stop("directories lie too deep in one another")
	}
	for {
		list, err := dir.ReadDir(1024)
		for _, d := range list {
			if w.entries++; w.entries > MaxEntries {
				return w.stop("there are too many files")
			}
			if err := w.entry(dir, at, d, z, covered, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			w.incomplete = "a directory could not be read"
			return nil
		}
	}
}

func (w *walker) entry(dir *os.File, at string, d os.DirEntry, z Zone, covered bool, depth int) error {
	e := entry{name: d.Name(), zone: z.Child(d.Name()), covered: covered}
	if d.Type().IsRegular() && e.zone.Rule() == nil {
		return nil
	}
	e.dir, e.path = int(dir.Fd()), path.Join(at, e.name)
	if !d.IsDir() {
		w.look(&e)
		return nil
	}
	sub, err := openDir(e.dir, e.name)
	if err != nil {
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EXDEV) {
			w.incomplete = "a directory could not be read"
		}
		return nil
	}
	if e.repository = isRepository(int(sub.Fd())); e.repository || e.zone.Rule() != nil {
		w.look(&e)
	}
	below := e.zone
	switch {
	case e.name == "objects" && e.zone.InGitDir(): // git's own names, and many of them
		return sub.Close()
	case e.repository && !e.zone.InGitDir():
		below = gitZone
	}
	return w.walk(sub, e.path, below, covered || e.cover, depth+1)
}

func (w *walker) look(e *entry) {
	if stat(e.dir, e.name, &e.st) == nil {
		w.visit(e)
	}
}

func stat(dir int, name string, st *unix.Statx_t) error {
	return unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st)
}

func exists(dir int, name string) bool {
	return unix.Faccessat(dir, name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// isRepository tells whether git would take the directory for a repository.
func isRepository(dir int) bool { return exists(dir, "objects") && exists(dir, "refs") }

// readConfig reads a repository's configuration, if it is a regular file.
func readConfig(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, unix.EINVAL
	}
	return io.ReadAll(io.LimitReader(f, MaxGitConfig+1))
}
