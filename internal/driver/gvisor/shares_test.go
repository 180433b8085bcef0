package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// shared makes a directory of the caller's and opens it as the command line
// does.
func shared(t *testing.T) (string, *os.File) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte("was there\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	return dir, openPath(t, dir)
}

func openPath(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestShares: the caller's directories, read-write and read-only, and a file.
func TestShares(t *testing.T) { inModes(t, testShares) }

func testShares(t *testing.T) {
	rw, rwFile := shared(t)
	_, roFile := shared(t)
	one := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(one, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(modeEnv) == "" { // root: a directory of somebody else's
		for _, f := range []string{rw, filepath.Join(rw, "there")} {
			if err := os.Chown(f, 4321, 4321); err != nil {
				t.Fatal(err)
			}
		}
	}
	req := request(t)
	req.Mounts = []driver.Mount{
		{File: rwFile, Target: "/work space/deep"},
		{File: roFile, Target: "/ro", ReadOnly: true},
		{File: openPath(t, one), Target: "/etc/one"},
	}
	b := start(t, newDriver(t), req)
	sh := func(script string) string {
		r := b.run("/bin/sh", "-c", script+" 2>&1")
		return strings.TrimSpace(r.Out)
	}
	for _, c := range []struct{ name, script, want string }{
		{"read", "cat '/work space/deep/there' /ro/there /etc/one", "was there\nwas there\none"},
		{"owner", "stat -c %u:%g '/work space/deep/there'", "1000:1000"},
		{"write", "cd '/work space/deep' && echo new >made && mkdir -p a/b && cat made && rm there && ls", "new\na\nmade"},
		{"read-only", "echo x >/ro/x", "/bin/sh: 1: cannot create /ro/x: Read-only file system"},
		{"file", "echo two >/etc/one && cat /etc/one", "two"},
		{"set-id", "cd '/work space/deep' && touch s && chmod 6755 s; stat -c %a s", "755"},
		{"device", "mknod '/work space/deep/null' c 1 3; ls '/work space/deep' | grep -c null", "mknod: '/work space/deep/null': Operation not permitted\n0"},
		{"run", "cp /bin/echo '/work space/deep/e' && '/work space/deep/e' ran", "ran"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := sh(c.script); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	got, err := os.ReadFile(filepath.Join(rw, "made"))
	if err != nil || string(got) != "new\n" {
		t.Errorf("on the host: %q, %v", got, err)
	}
	var st, dir unix.Stat_t
	if unix.Stat(filepath.Join(rw, "made"), &st) != nil || unix.Stat(rw, &dir) != nil || st.Uid != dir.Uid || st.Gid != dir.Gid {
		t.Errorf("made belongs to %d:%d, its directory to %d:%d", st.Uid, st.Gid, dir.Uid, dir.Gid)
	}
	if got, _ := os.ReadFile(one); string(got) != "two\n" {
		t.Errorf("file on the host: %q", got)
	}
}

// TestShareMoved: a directory that is no longer where it was opened is refused,
// and nothing is left.
func TestShareRefused(t *testing.T) {
	d := newDriver(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/null"} {
		req := request(t)
		req.Mounts = []driver.Mount{{File: openPath(t, path), Target: "/x"}}
		if _, err := d.Create(t.Context(), req); err == nil {
			t.Errorf("%s was accepted", path)
		} else {
			t.Log(err)
		}
		nothingLeft(t, d, req)
	}
}
