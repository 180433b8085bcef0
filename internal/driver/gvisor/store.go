package gvisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openStore makes the unnamed file that holds what a sandbox writes, in the
// first of dirs that can: on a disk (so that files do not count as memory) and
// on a file system from which programs may be run (the guest's programs are
// mapped from it). It goes with its last descriptor, so nothing is ever left.
func openStore(dirs ...string) (*os.File, error) {
	var first error
	for _, dir := range dirs {
		f, err := tryStore(dir)
		if err == nil {
			return f, nil
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil, first
}

func tryStore(dir string) (*os.File, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, err
	}
	switch st.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return nil, fmt.Errorf("its files are memory")
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir+" (store)")
	// Besides being the question whether programs may be run from here, this
	// settles what an integrity policy (IMA) wants to see before the sentry,
	// which could not, maps the file.
	m, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_EXEC, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, err
	}
	_ = unix.Munmap(m)
	return f, nil
}
