package sharefs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mountEnv is set in the process that has a mount namespace of its own.
const mountEnv = "SHAREFS_TEST_MOUNTS"

// withMounts runs the calling test again where it may mount, and reports whether
// this is that run.
func withMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mountEnv) == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Getenv(howEnv) == filtered {
		t.Skip("probe: the other runs test this")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mountEnv+"="+t.Name(), howEnv+"="+confined)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("probe: no mount namespace: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// bind mounts source over target until the test ends.
func bind(t *testing.T, source, target string) {
	t.Helper()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

// TestNestedMounts: what is mounted inside a share is seen and out of reach.
func TestNestedMounts(t *testing.T) {
	t.Parallel()
	if !withMounts(t) {
		return
	}
	r := newRig(t, protected)
	r.onHost("nested/", "bound=x", "sub/f=x", "plain=x")
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "canary"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	bind(t, secret, r.host("nested"))
	bind(t, filepath.Join(secret, "canary"), r.host("bound"))
	for path, typ := range map[string]uint16{"nested": unix.S_IFDIR, "bound": unix.S_IFREG} {
		fd, in := r.must(path)
		if in.Stat.Mode != typ || in.Stat.UID != Nobody || in.Stat.Size != 0 {
			t.Errorf("%s: mode %o, uid %d, size %d", path, in.Stat.Mode, in.Stat.UID, in.Stat.Size)
		}
		if st, err := r.root.WalkStat(r.ctx, []string{path}); err != nil || len(st) != 1 || st[0].Mode != typ {
			t.Errorf("WalkStat of %s: %v, %v", path, st, err)
		}
		_, _, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
		r.expect("open "+path, err, unix.EACCES)
		r.expect("chmod "+path, r.chmod(path, 0o777), unix.EACCES)
		r.expect("xattr "+path, r.setxattr(path, "user.a", "b"), unix.EACCES)
		if r.rename(path, "elsewhere") == nil || r.rename("plain", path) == nil {
			t.Errorf("%s was renamed or replaced", path)
		}
		if r.unlink(path) == nil || r.rmdir(path) == nil {
			t.Errorf("%s was removed", path)
		}
	}
	if _, _, err := r.walk("nested/canary"); err != unix.EACCES {
		t.Errorf("walk into it: %v", err)
	}
	if _, err := r.root.WalkStat(r.ctx, []string{"nested", "canary"}); err != unix.EACCES {
		t.Errorf("WalkStat into it: %v", err)
	}
	r.expect("create in it", r.create("nested/new", "x"), unix.EACCES)
	r.expect("mkdir in it", r.mkdir("nested/new"), unix.EACCES)
	r.expect("link into it", r.link("plain", "nested/new"), unix.EACCES)
	r.expect("link from it", r.link("bound", "new"), unix.EACCES)
	r.expect("rename into it", r.rename("plain", "nested/new"), unix.EACCES)
	r.expect("a neighbour", r.write("sub/f", "y"), 0)
	if b, err := os.ReadFile(filepath.Join(secret, "canary")); err != nil || string(b) != "host" {
		t.Errorf("what is mounted: %q, %v", b, err)
	}
}

// TestReadOnlyMount: a share whose mount is read-only on the host too may donate
// descriptors, which the kernel guards.
func TestReadOnlyMount(t *testing.T) {
	t.Parallel()
	if !withMounts(t) {
		return
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	bind(t, dir, dir)
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	flags |= uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", dir, "", flags, ""); err != nil {
		t.Fatal(err)
	}
	sh := protected
	sh.ReadOnly = true
	r := serve(t, dir, sh)
	fd, _ := r.must("f")
	_, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
	if err != nil || hostFD < 0 {
		t.Fatalf("open: %d, %v", hostFD, err)
	}
	defer unix.Close(hostFD)
	if err := unix.Fchmod(hostFD, 0o600); err != unix.EROFS {
		t.Errorf("fchmod of a donated descriptor: %v", err)
	}
	_, _, err = fd.OpenAt(r.ctx, unix.O_RDWR)
	r.expect("open for writing", err, unix.EROFS)
	r.expect("create", r.create("new", ""), unix.EROFS)
}
