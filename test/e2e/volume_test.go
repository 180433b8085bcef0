package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// asUsers runs a test as root and as an ordinary user of the host.
func asUsers(t *testing.T, f func(t *testing.T, e *testenv.Env)) {
	t.Run("root", func(t *testing.T) {
		e := setup(t)
		if e.UID() != 0 {
			t.Skip("probe: user: not root")
		}
		f(t, e)
	})
	t.Run("user", func(t *testing.T) {
		e := setup(t)
		if e.UID() == 0 {
			e.AsUser(12345)
		}
		f(t, e)
	})
}

// workspace makes a directory of the user's with some files in it.
func workspace(t testing.TB, e *testenv.Env) string {
	t.Helper()
	dir := filepath.Join(e.Home, "ws")
	for name, text := range map[string]string{"main.py": "print('hi')\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n", ".git/objects/x": "", ".git/refs/x": ""} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e.Own(dir)
	return dir
}

// attack tries to leave something with more rights than the caller has.
const attack = `
import ctypes, os, shutil, socket, stat, struct
libc = ctypes.CDLL(None, use_errno=True)
def attempt(f):
    try: f()
    except Exception as err: print(type(err).__name__, err)
def setuid():
    shutil.copy("/bin/sh", "suid"); os.chmod("suid", 0o4755)
def created():
    os.close(os.open("created", os.O_CREAT | os.O_WRONLY, 0o6777)); os.chmod("created", 0o6777)
def setgid():
    os.mkdir("sgid", 0o2777); os.chmod("sgid", 0o2777)
def fchmod():
    with open("fchmod", "w") as f: os.fchmod(f.fileno(), 0o4755)
def chown():
    open("chowned", "w").close(); os.chown("chowned", 0, 0); os.chmod("chowned", 0o4755)
def other():
    open("other", "w").close(); os.chown("other", 4242, 4243)
def caps():
    shutil.copy("/bin/sh", "caps")
    os.setxattr("caps", "security.capability", struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0))
def trusted():
    open("trusted", "w").close(); os.setxattr("trusted", "trusted.overlay.opaque", b"y")
attempt(setuid); attempt(created); attempt(setgid); attempt(fchmod); attempt(chown); attempt(other); attempt(caps); attempt(trusted)
attempt(lambda: os.mknod("blk", 0o666 | stat.S_IFBLK, os.makedev(8, 0)))
attempt(lambda: os.mknod("chr", 0o666 | stat.S_IFCHR, os.makedev(1, 1)))
attempt(lambda: os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(0, 0)))
attempt(lambda: os.rename("main.py", "renamed.py"))
open("work", "w").write("done")
`

// TestVolumeLeavesNoRights: from inside as root, over a mount that may be
// written, nothing is left on the host with set-id bits, capabilities, another
// owner or of a special type; honest work is, owned by the caller.
func TestVolumeLeavesNoRights(t *testing.T) {
	needPython(t)
	asUsers(t, func(t *testing.T, e *testenv.Env) {
		dir := workspace(t, e)
		r := want(t, e.Belljar("run", "-u", "root", "-v", dir+":/ws", "-w", "/ws", "--", python, "-c", attack), 0)
		if b, err := os.ReadFile(filepath.Join(dir, "work")); err != nil || string(b) != "done" {
			t.Fatalf("the work is not there: %v\n%s%s", err, r.Stdout, r.Stderr)
		}
		if _, err := os.Stat(filepath.Join(dir, "renamed.py")); err != nil {
			t.Errorf("an honest rename failed: %v", err)
		}
		inspect(t, dir, e.UID())
	})
}

// inspect looks at everything beneath dir as the host sees it.
func inspect(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("%s has mode %o", path, st.Mode)
		}
		if int(st.Uid) != uid || int(st.Gid) != uid {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		default:
			t.Errorf("%s is of type %o", path, st.Mode&unix.S_IFMT)
		}
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err == nil {
			for name := range strings.SplitSeq(string(names[:n]), "\x00") {
				if name != "" && !strings.HasPrefix(name, "user.") && name != "security.selinux" {
					t.Errorf("%s has the attribute %s", path, name)
				}
			}
		} else if !errors.Is(err, syscall.EOPNOTSUPP) {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// links tries to reach a directory of the host's, whose path it is told, over
// links of a mount: by name, by hard link, and by swapping a directory for a
// link while others go through it.
const links = `
import ctypes, os, sys, threading
out = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def attempt(f):
    try: print("got", f())
    except Exception as err: print(type(err).__name__)
def read(path):
    with open(path) as f: return f.read()
os.symlink(out, "l"); os.symlink(out + "/secret", "s"); os.symlink("../outside", "up"); os.symlink("/proc/1/root" + out, "p")
for name in "l/secret", "s", "up/secret", "p/secret", out + "/secret", "../outside/secret":
    attempt(lambda: read(name))
    attempt(lambda: os.link(name, "hard"))
    attempt(lambda: os.link(name, "hard", follow_symlinks=True))
    attempt(lambda: open(name, "a").write("evil"))
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
attempt(lambda: libc.linkat(AT_FDCWD, b"s", AT_FDCWD, b"hard2", AT_SYMLINK_FOLLOW))
for name in "main.py", "l", "s":
    attempt(lambda: os.link(name, "/tmp/in"))
    attempt(lambda: os.link(name, out + "/made"))
os.mkdir("d"); os.symlink(out, "e")
stop = False
def swap():
    while not stop:
        for a, b in ("d", "t"), ("e", "d"), ("d", "e"), ("t", "d"):
            try: os.rename(a, b)
            except OSError: pass
t = threading.Thread(target=swap); t.start()
for n in range(500):
    for f in (lambda: open("d/evil", "w").close(), lambda: read("d/secret"), lambda: os.unlink("d/secret"),
              lambda: os.chmod("d/secret", 0o777), lambda: os.mkdir("d/dir"), lambda: os.link("d/secret", "hard3"),
              lambda: os.rename("d/secret", "d/taken"), lambda: os.truncate("d/secret", 0)):
        try:
            if f(): print("got it")
        except OSError: pass
stop = True; t.join()
open("work", "w").write("done")
`

// TestVolumeLinksLeadNowhere: from inside as root, no link of a mount leads to
// what lies beside it on the host, nor does a swap of one while it is followed.
func TestVolumeLinksLeadNowhere(t *testing.T) {
	needPython(t)
	asUsers(t, func(t *testing.T, e *testenv.Env) {
		dir := workspace(t, e)
		outside := filepath.Join(e.Home, "outside")
		secret := filepath.Join(outside, "secret")
		if err := os.Mkdir(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(secret, []byte("hush"), 0o644); err != nil {
			t.Fatal(err)
		}
		e.Own(outside)
		var before unix.Stat_t
		if err := unix.Lstat(secret, &before); err != nil {
			t.Fatal(err)
		}
		r := want(t, e.Belljar("run", "-u", "root", "-v", dir+":/ws", "-w", "/ws", "--", python, "-c", links, outside), 0)
		if b, err := os.ReadFile(filepath.Join(dir, "work")); err != nil || string(b) != "done" {
			t.Fatalf("the work is not there: %v\n%s%s", err, r.Stdout, r.Stderr)
		}
		if strings.Contains(r.Stdout, "hush") || strings.Contains(r.Stdout, "got it") {
			t.Errorf("the file was read:\n%s", r.Stdout)
		}
		var after unix.Stat_t
		if err := unix.Lstat(secret, &after); err != nil || after.Nlink != 1 || after.Mode != before.Mode || after.Size != before.Size || after.Mtim != before.Mtim {
			t.Errorf("the file beside the mount was touched: %+v, before %+v, %v", after, before, err)
		}
		if names, err := os.ReadDir(outside); err != nil || len(names) != 1 {
			t.Errorf("beside the mount are %v, %v", names, err)
		}
		inspect(t, dir, e.UID())
	})
}

// TestProtectedNames: names that the host later executes or trusts cannot be
// made or changed in a mounted directory, by any way of making a name.
func TestProtectedNames(t *testing.T) {
	needPython(t)
	asUsers(t, func(t *testing.T, e *testenv.Env) {
		dir := workspace(t, e)
		r := want(t, e.Belljar("run", "-u", "root", "-v", dir+":/ws", "-w", "/ws", "--", python, "-c", `
import os
names = [".git/hooks/post-checkout", ".git/config", ".envrc", ".vscode/tasks.json", ".idea/workspace.xml", ".mcp.json", ".claude/settings.json", ".bashrc", ".profile", ".zshrc", ".GIT/config", ".Envrc"]
def write(n):
    os.makedirs(os.path.dirname(n) or ".", exist_ok=True)
    open(n, "a").write("evil")
def rename(n):
    open("tmp1", "w").write("evil")
    os.makedirs(os.path.dirname(n) or ".", exist_ok=True)
    os.rename("tmp1", n)
def link(n):
    open("tmp2", "w").write("evil")
    os.link("tmp2", n)
def symlink(n): os.symlink("/tmp/evil", n)
def mkdir(n): os.makedirs(n)
def parent(n):
    d = os.path.dirname(n)
    if not d: raise OSError(1, "no parent")
    os.makedirs("tree/" + os.path.basename(n), exist_ok=True)
    os.rename("tree", d)
for n in names:
    for how in (write, rename, link, symlink, mkdir, parent):
        try: how(n)
        except OSError: continue
        print("MADE", n, "by", how.__name__)
`), 0)
		if strings.Contains(r.Stdout, "MADE") {
			t.Errorf("%s", r.Stdout)
		}
		for _, n := range []string{".git/hooks", ".envrc", ".vscode", ".idea", ".mcp.json", ".claude", ".bashrc", ".profile", ".zshrc"} {
			if _, err := os.Lstat(filepath.Join(dir, n)); err == nil {
				t.Errorf("%s exists on the host", n)
			}
		}
		if b, _ := os.ReadFile(filepath.Join(dir, ".git/config")); string(b) != "[core]\n" {
			t.Errorf(".git/config is %q", b)
		}
		inspect(t, dir, e.UID())
	})
}

// TestWorkspaceList: the list at the end of a run is right: what is to be
// looked at is on it, what is not is not.
func TestWorkspaceList(t *testing.T) {
	e := setup(t)
	dir := workspace(t, e)
	before := filepath.Join(dir, "old-link")
	if err := os.Symlink("/etc", before); err != nil {
		t.Fatal(err)
	}
	// The clock of file times is coarse: what came before the run must be older.
	line := "ln -s /etc/passwd out; ln -s main.py in; ln -s ../../up up; echo x > plain; printf 'a' > \"$(printf 'esc\\033[31m')\"; ln -s / \"$(printf 'bad\\033[31m\\nname')\"; mkdir sub; ln -s ../main.py sub/in"
	var got ended
	decode(t, want(t, e.Belljar("run", "-o", "json", "-v", dir+":/ws", "-w", "/ws", "--", "sh", "-c", line), 0).Stdout, &got)
	if len(got.Workspace) != 1 || got.Workspace[0].Source != dir {
		t.Fatalf("workspace = %+v", got.Workspace)
	}
	found := map[string]string{}
	for _, f := range got.Workspace[0].Findings {
		found[f.Path] = f.Kind
	}
	for _, p := range []string{"out", "up", "bad\x1b[31m\nname"} {
		if found[p] != "link-out" {
			t.Errorf("%q is %q in the list, want link-out", p, found[p])
		}
		delete(found, p)
	}
	if len(found) > 0 {
		t.Errorf("on the list too: %v", found)
	}

	r := want(t, e.Belljar("run", "-v", dir+":/ws", "-w", "/ws", "--", "ln", "-s", "/etc/passwd", "again"), 0)
	contains(t, r.Stderr, "look at these in "+dir, "again -> /etc/passwd")
	if strings.ContainsRune(r.Stderr, 0x1b) {
		t.Errorf("control characters: %q", r.Stderr)
	}
	r = want(t, e.Belljar("run", "-v", dir+":/ws", "-w", "/ws", "--", "touch", "fine"), 0)
	if r.Stderr != "" {
		t.Errorf("a harmless run says %q", r.Stderr)
	}
}

// TestVolumeReadOnly: :ro is read-only, for root inside too; a single file can
// be mounted; what the caller may not read is not mounted.
func TestVolumeReadOnly(t *testing.T) {
	e := setup(t)
	dir := workspace(t, e)
	r := e.Belljar("run", "-u", "root", "-v", dir+":/ws:ro", "-w", "/ws", "--", "sh", "-c",
		"cat main.py; echo x > new || echo refused; echo x >> main.py || echo refused; rm main.py || echo refused; chmod 777 main.py || echo refused; mount -o remount,rw /ws 2>/dev/null; echo x > new || echo refused")
	if n := strings.Count(r.Stdout, "refused"); n != 5 || !strings.HasPrefix(r.Stdout, "print('hi')") {
		t.Errorf("%d of 5 attempts were refused: %s", n, r.Stdout)
	}
	inspect(t, dir, e.UID())
	if fi, err := os.Stat(filepath.Join(dir, "main.py")); err != nil || fi.Mode().Perm() != 0o644 || fi.Size() != 12 {
		t.Errorf("main.py on the host: %v, %v", fi, err)
	}
	r = want(t, e.Belljar("run", "-v", dir+"/main.py:/one/file.py", "--", "cat", "/one/file.py"), 0)
	if r.Stdout != "print('hi')\n" {
		t.Errorf("a mounted file reads %q", r.Stdout)
	}
}

// TestVolumeByDaemon: mounts reach a sandbox of the daemon as descriptors.
func TestVolumeByDaemon(t *testing.T) {
	e := setup(t)
	dir := workspace(t, e)
	b := create(t, e, "work", "-v", dir+":/ws", "-w", "/ws")
	want(t, b.sh("cat main.py > copy && pwd"), 0)
	if text, err := os.ReadFile(filepath.Join(dir, "copy")); err != nil || string(text) != "print('hi')\n" {
		t.Errorf("%q, %v", text, err)
	}
}
