package hostfilter_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/hostfilter"
)

// confinedEnv makes the test binary install the filter, run every attempt in
// the directory that it names and print what came of each.
const confinedEnv = "HOSTFILTER_TEST_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(confinedEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	for range 2 { // the second is what a role that executed itself again does
		if err := hostfilter.Install(); err != nil {
			fmt.Println("install:", err)
			os.Exit(1)
		}
	}
	for _, a := range attempts {
		fmt.Printf("%s\t%s\n", a.name, unix.ErrnoName(errnoOf(a.try(dir))))
	}
	os.Exit(0)
}

func errnoOf(err error) unix.Errno {
	var e unix.Errno
	errors.As(err, &e)
	return e
}

func at(dir, name string) string { return filepath.Join(dir, name) }

// openAt opens or creates a file and closes it again.
func openAt(dir, name string, flags int, mode uint32) error {
	fd, err := unix.Openat(unix.AT_FDCWD, at(dir, name), flags, mode)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// otherThreads runs f on a number of threads at once, so that at least one is
// not the one that installed the filter.
func otherThreads(f func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	for _, err := range errs {
		if errnoOf(err) != unix.EPERM {
			return fmt.Errorf("a thread was not confined: %w", errnoOf(err))
		}
	}
	return unix.EPERM
}

var attempts = []struct {
	name string
	want string // name of the errno; empty: the call works
	try  func(dir string) error
}{
	{"chmod 0755", "", func(d string) error { return unix.Chmod(at(d, "file"), 0o755) }},
	{"chmod 4755", "EPERM", func(d string) error { return unix.Chmod(at(d, "file"), 0o4755) }},
	{"chmod 2755", "EPERM", func(d string) error { return unix.Chmod(at(d, "file"), 0o2755) }},
	{"chmod 1777 of a directory", "", func(d string) error { return unix.Chmod(at(d, "dir"), 0o1777) }},
	{"fchmodat 4755", "EPERM", func(d string) error { return unix.Fchmodat(unix.AT_FDCWD, at(d, "file"), 0o4755, 0) }},
	{"fchmodat2 4755", "EPERM", func(d string) error {
		return unix.Fchmodat(unix.AT_FDCWD, at(d, "file"), 0o4755, unix.AT_SYMLINK_NOFOLLOW)
	}},
	{"fchmod 4755 on other threads", "EPERM", func(d string) error {
		f, err := os.Open(at(d, "file"))
		if err != nil {
			return err
		}
		defer f.Close()
		return otherThreads(func() error { return unix.Fchmod(int(f.Fd()), 0o4755) })
	}},
	{"open without creating ignores the mode", "", func(d string) error { return openAt(d, "file", unix.O_RDONLY, 0o4755) }},
	{"create 0644", "", func(d string) error { return openAt(d, "new", unix.O_CREAT|unix.O_WRONLY, 0o644) }},
	{"create 4755", "EPERM", func(d string) error { return openAt(d, "suid", unix.O_CREAT|unix.O_WRONLY, 0o4755) }},
	{"O_TMPFILE 4755", "EPERM", func(d string) error { return openAt(d, ".", unix.O_TMPFILE|unix.O_RDWR, 0o4755) }},
	{"O_DIRECTORY is not O_TMPFILE", "", func(d string) error { return openAt(d, "dir", unix.O_DIRECTORY, 0o4755) }},
	{"mkdir 0755", "", func(d string) error { return unix.Mkdirat(unix.AT_FDCWD, at(d, "sub"), 0o755) }},
	{"mkdir 2755", "EPERM", func(d string) error { return unix.Mkdirat(unix.AT_FDCWD, at(d, "sgid"), 0o2755) }},
	{"mknod of a regular file", "", func(d string) error { return unix.Mknod(at(d, "reg"), unix.S_IFREG|0o600, 0) }},
	{"mknod without a type", "", func(d string) error { return unix.Mknod(at(d, "reg2"), 0o600, 0) }},
	{"mknod of a set-user-ID file", "EPERM", func(d string) error { return unix.Mknod(at(d, "suid2"), unix.S_IFREG|0o4755, 0) }},
	{"mknod of a FIFO", "EPERM", func(d string) error { return unix.Mknod(at(d, "fifo"), unix.S_IFIFO|0o600, 0) }},
	{"mknod of a whiteout", "EPERM", func(d string) error { return unix.Mknod(at(d, "null"), unix.S_IFCHR|0o600, 0) }},
	{"mknodat of a block device", "EPERM", func(d string) error {
		return unix.Mknodat(unix.AT_FDCWD, at(d, "disk"), unix.S_IFBLK|0o600, 0x700)
	}},
	{"setxattr", "EPERM", func(d string) error { return unix.Setxattr(at(d, "file"), "user.a", []byte("b"), 0) }},
	{"lsetxattr", "EPERM", func(d string) error { return unix.Lsetxattr(at(d, "file"), "user.a", []byte("b"), 0) }},
	{"io_uring_enter", "EPERM", func(string) error {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, ^uintptr(0), 0, 0, 0, 0, 0)
		return errno
	}},
	{"programs still start", "", func(string) error { return exec.Command("/bin/true").Run() }},
}

// TestInstall runs every attempt in a process that installed the filter.
func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(at(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), confinedEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the confined process: %v\n%s", err, out)
	}
	got := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		got[name] = result
	}
	for _, a := range attempts {
		result, ran := got[a.name]
		if !ran {
			t.Errorf("%s: did not run:\n%s", a.name, out)
		} else if result != a.want {
			t.Errorf("%s: got %q, want %q", a.name, result, a.want)
		}
	}
	left, err := filepath.Glob(at(dir, "s*id*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files that must not exist: %v (%v)", left, err)
	}
}
