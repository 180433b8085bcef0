package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
)

// shiftedRoot makes a template as an import leaves it: true owners, and a
// set-user-ID program.
func shiftedRoot(t *testing.T) driver.Root {
	t.Helper()
	dir := t.TempDir()
	openUp(dir)
	guest, err := os.ReadFile(testGuest)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "tmp", "home/user", "locked"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"bin/plain": 0o755, "bin/suid": 0o755 | os.ModeSetuid} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, guest, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "locked/secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Join(dir, "locked"), 0o700)
	return driver.Root{Path: dir, Shifted: true, Setuid: true}
}

// TestShifted: a template with owners of its own, and sudo's way to root.
func TestShifted(t *testing.T) { inModes(t, testShifted) }

func testShifted(t *testing.T) {
	root := shiftedRoot(t)
	many := os.Chown(filepath.Join(root.Path, "home/user"), 1000, 1000) == nil
	if m := os.Getenv(modeEnv); many != (m != "one id") {
		t.Fatalf("mode %q: more than one id is %v", m, many)
	}
	for _, setuid := range []bool{true, false} {
		req := request(t)
		req.Root = root
		req.Root.Setuid = setuid
		b := start(t, newDriver(t), req)
		as := func(uid int, argv ...string) string {
			r := b.ask(map[string]any{"op": "run", "uid": uid, "argv": argv})
			return strings.TrimSpace(r.Out + r.Err)
		}
		want := "1000 1000"
		if setuid {
			want = "1000 0"
		}
		if got := as(1000, "/bin/suid", "ids"); got != want {
			t.Errorf("setuid %v: a user becomes %q, want %q", setuid, got, want)
		}
		if got := as(1000, "/bin/plain", "ids"); got != "1000 1000" {
			t.Errorf("plain program: %q", got)
		}
		if got, want := as(0, "/bin/plain", "stat", "/bin/plain", "/bin/suid", "/locked/secret"), "0:0 755\n0:0 4755\n0:0 600"; got != want {
			t.Errorf("root sees %q, want %q", got, want)
		}
		if got := as(1000, "/bin/plain", "stat", "/locked/secret"); !strings.Contains(got, "permission denied") {
			t.Errorf("a user sees into a locked directory: %q", got)
		}
		if got := as(0, "/bin/plain", "stat", "/home/user"); many && got != "1000:1000 755" {
			t.Errorf("home: %q", got)
		}
	}
}

// TestOwnRange: a sandbox of root's reads no file that not everybody may read,
// and its processes have ids that own nothing.
func TestOwnRange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe: not root")
	}
	req := request(t)
	secret := filepath.Join(req.Root.Path, "etc/secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, dir := shared(t)
	req.Mounts = []driver.Mount{{File: dir, Target: "/share"}}
	d := newDriver(t)
	b := start(t, d, req)
	if r := b.run("/bin/sh", "-c", "cat /etc/secret"); r.Code == 0 {
		t.Errorf("root inside reads a secret of the host: %+v", r)
	}
	pids, err := d.ids.findRoles(req.ID)
	if err != nil || len(pids) < 2 { // sentry and gofer
		t.Fatalf("roles %v, %v", pids, err)
	}
	for _, pid := range pids {
		status, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "status"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			switch f[0] {
			case "Uid:", "Gid:":
				for _, id := range f[1:] {
					if n := atoi(id); n < rangeFirst || n >= rangeFirst+rangeCount*rangeSize {
						t.Errorf("process %d: %s", pid, line)
					}
				}
			case "Groups:":
				if len(f) > 1 {
					t.Errorf("process %d keeps groups: %s", pid, line)
				}
			case "NoNewPrivs:", "Seccomp:":
				if f[1] == "0" {
					t.Errorf("process %d: %s", pid, line)
				}
			}
		}
	}
}
