package cli

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/sandbox"
)

// volume is one -v: a file or directory of the caller's, opened with the
// caller's rights. Only the descriptor goes on from here.
type volume struct {
	source   string // as the user wrote it
	target   string
	readOnly bool
	dir      bool
	file     *os.File // O_PATH
}

const volumeHint = "write -v SRC:DST or -v SRC:DST:ro, SRC being a file or directory of yours and DST an absolute path inside"

// warner prints a warning.
type warner func(format string, args ...any)

// openVolumes parses and opens every -v. On error all are closed.
func openVolumes(specs []string, warn warner) (vols []*volume, err error) {
	own, err := config.User()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeVolumes(vols)
		}
	}()
	for _, s := range specs {
		v, err := parseVolume(s)
		if err != nil {
			return vols, err
		}
		if err := v.open(); err != nil {
			return vols, err
		}
		vols = append(vols, v)
		if err := v.check(warn); err != nil {
			return vols, err
		}
		if err := v.holdsOurs(own.State, own.Runtime); err != nil {
			return vols, err
		}
	}
	return vols, nil
}

func closeVolumes(vols []*volume) {
	for _, v := range vols {
		v.file.Close()
	}
}

func parseVolume(s string) (*volume, error) {
	parts := strings.Split(s, ":")
	v := &volume{}
	switch {
	case len(parts) == 3 && parts[2] == "ro":
		v.readOnly = true
	case len(parts) == 3 && parts[2] == "rw", len(parts) == 2:
	case len(parts) == 3:
		return nil, usagef(volumeHint, "-v %q: %q is neither ro nor rw", s, parts[2])
	default:
		return nil, usagef(volumeHint, "-v %q: it has %d parts", s, len(parts))
	}
	v.source, v.target = parts[0], parts[1]
	if v.source == "" || v.target == "" {
		return nil, usagef(volumeHint, "-v %q: a part is empty", s)
	}
	if !strings.HasPrefix(v.target, "/") {
		return nil, usagef(volumeHint, "-v %q: the target is not absolute", s)
	}
	v.target = path.Clean(v.target)
	return v, nil
}

func (v *volume) fail(kind sandbox.Kind, hint, format string, args ...any) error {
	e := sandbox.Errorf(kind, format, args...).WithField("volume", v.source)
	if hint != "" {
		e = e.WithHint("%s", hint)
	}
	return e
}

func (v *volume) open() error {
	fd, err := unix.Open(v.source, unix.O_PATH|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return v.fail(sandbox.NotFound, "make it first: belljar never makes a directory for a mount", "there is no such file or directory")
	case err != nil:
		return v.fail(sandbox.Denied, "", "it cannot be opened: %w", err)
	}
	v.file = os.NewFile(uintptr(fd), v.source)
	return nil
}

// Magic numbers of file systems that show the host itself.
var hostFileSystems = map[int64]string{
	unix.PROC_SUPER_MAGIC:    "proc",
	unix.SYSFS_MAGIC:         "sysfs",
	unix.CGROUP_SUPER_MAGIC:  "cgroup",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEBUGFS_MAGIC:       "debugfs",
	unix.TRACEFS_MAGIC:       "tracefs",
	unix.SECURITYFS_MAGIC:    "securityfs",
	unix.DEVPTS_SUPER_MAGIC:  "devpts",
}

// check refuses what must not be mounted and warns of what should not.
func (v *volume) check(warn warner) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(v.file.Fd()), &st); err != nil {
		return v.fail(sandbox.Denied, "", "it cannot be examined: %w", err)
	}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !dir && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return v.fail(sandbox.Denied, "mount a directory or a regular file", "it is %s", kindName(st.Mode))
	}
	if dir && (same(&st, "/") || same(&st, "/dev")) {
		return v.fail(sandbox.Denied, "mount the directory that the work needs, nothing above it", "the root of the host or its devices may not be mounted")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(v.file.Fd()), &fs); err == nil {
		if name, bad := hostFileSystems[int64(fs.Type)]; bad {
			return v.fail(sandbox.Denied, "", "it lies in %s, which shows the host itself", name)
		}
	}
	v.dir = dir
	if err := v.checkAccess(dir); err != nil {
		return err
	}
	if dir {
		v.warnHome(&st, warn)
	}
	return nil
}

// holdsOurs refuses what holds one of Belljar's own directories, or lies in one:
// whoever reads them has the memory of paused sandboxes, and whoever writes them
// decides what the next sandbox starts from.
func (v *volume) holdsOurs(dirs ...string) error {
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", v.file.Fd()))
	if err != nil {
		return v.fail(sandbox.Denied, "", "its place cannot be told: %w", err)
	}
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			real = filepath.Clean(dir) // it is not there yet, or its parents are not
		}
		if within(real, at) || within(at, real) {
			return v.fail(sandbox.Denied, "mount a directory that holds only what the work needs, or keep Belljar's own files elsewhere: BELLJAR_STATE_DIR, BELLJAR_RUNTIME_DIR",
				"Belljar keeps templates and images of all sandboxes in %s", real)
		}
	}
	return nil
}

// within reports whether path is dir or lies beneath it; both are absolute and
// clean.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// checkAccess asks the kernel whether the caller may use the file, which
// opening it with O_PATH does not tell.
func (v *volume) checkAccess(dir bool) error {
	self := fmt.Sprintf("/proc/self/fd/%d", v.file.Fd())
	mode := uint32(unix.R_OK)
	if dir {
		mode |= unix.X_OK
	}
	if err := unix.Faccessat(unix.AT_FDCWD, self, mode, unix.AT_EACCESS); err != nil {
		return v.fail(sandbox.Denied, "check its permissions for this user", "it may not be read: %w", err)
	}
	if v.readOnly {
		return nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, self, unix.W_OK, unix.AT_EACCESS); err != nil {
		return v.fail(sandbox.Denied, "add :ro to mount it read-only", "it may not be written: %w", err)
	}
	return nil
}

// warnHome warns when the whole home directory, or a directory above it, is
// handed over.
func (v *volume) warnHome(st *unix.Stat_t, warn warner) {
	home, err := os.UserHomeDir()
	if err != nil || home == "" {
		return
	}
	for p := filepath.Clean(home); p != "/" && p != "."; p = filepath.Dir(p) {
		if same(st, p) {
			warn("-v %s hands the whole home directory %s to the sandbox, keys and tokens in it included; mount the project's directory instead", v.source, home)
			return
		}
	}
}

func same(st *unix.Stat_t, path string) bool {
	var other unix.Stat_t
	return unix.Stat(path, &other) == nil && other.Dev == st.Dev && other.Ino == st.Ino
}

func kindName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return "a socket, which would let the sandbox speak to a program of the host"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	case unix.S_IFLNK:
		return "a symbolic link"
	}
	return "not a file of a known type"
}
