package sharefs

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/lisafs"
)

func TestModesNeverReachTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.expect("create 4755", r.createMode("created", "x", 0o4755), 0)
	r.expect("create 7777", r.createMode("created2", "x", 0o7777), 0)
	r.expect("mknod 4755", r.mknod("node", linux.ModeRegular|0o6755), 0)
	r.expect("mkdir 6755", r.mkdirMode("dir", 0o6755), 0)
	r.expect("create", r.create("changed", "x"), 0)
	r.expect("chmod 7777", r.chmod("changed", 0o7777), 0)
	r.expect("chmod of a directory", r.chmod("dir", 0o7777), 0)
	for path, want := range map[string]uint32{
		"created": 0o755, "created2": 0o775, "node": 0o755, "changed": 0o775, "dir": 0o1775,
	} {
		if got := r.lstat(path).Mode &^ unix.S_IFMT; got != want {
			t.Errorf("%s: mode %o on the host, want %o", path, got, want)
		}
		_, in := r.must(path)
		if got := uint32(in.Stat.Mode) &^ unix.S_IFMT; got != want {
			t.Errorf("%s: mode %o inside, want %o", path, got, want)
		}
	}
}

func TestNobodyElseMayWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := &rig{t: t, dir: dir}
	old.onHost("f=x", "shared=x", "priv/", "open/", ".git/objects/", ".git/refs/")
	for path, mode := range map[string]uint32{"priv": 0o700, "open": 0o777, "shared": 0o666, "": 0o755} {
		if err := unix.Chmod(old.host(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	r := serve(t, dir, protected)
	for path, want := range map[string]uint32{"": 0o755, "f": 0o755, ".git": 0o755, "priv": 0o755, "open": 0o777, "shared": 0o777} {
		r.expect("chmod "+path, r.chmod(path, 0o777), 0)
		if m := r.lstat(path).Mode & 0o7777; m != want {
			t.Errorf("%q has %o on the host, want %o", path, m, want)
		}
		if _, in := r.must(path); uint32(in.Stat.Mode)&0o7777 != want {
			t.Errorf("%q has %o inside, want %o", path, in.Stat.Mode&0o7777, want)
		}
	}
	r.expect("create", r.createMode("new", "x", 0o666), 0)
	r.expect("mkdir", r.mkdirMode("newdir", 0o777), 0)
	r.expect("mknod", r.mknod("node", linux.ModeRegular|0o666), 0)
	for path, want := range map[string]uint32{"new": 0o664, "newdir": 0o775, "node": 0o664} {
		if m := r.lstat(path).Mode & 0o7777; m != want {
			t.Errorf("%s has %o on the host, want %o", path, m, want)
		}
	}
}

func TestInheritedSetgid(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("team/")
	r.setID("team", 0o2775)
	r.expect("mkdir", r.mkdirMode("team/sub", 0o775), 0)
	if m := r.lstat("team/sub").Mode; m&unix.S_ISGID != 0 {
		t.Errorf("a new directory has mode %o", m)
	}
	_, in := r.must("team")
	if in.Stat.Mode&unix.S_ISGID != 0 {
		t.Errorf("the bit is shown: %o", in.Stat.Mode)
	}
	for _, c := range []struct {
		mode uint16
		want uint32
	}{{0o775, 0o2775}, {0o2775, 0o2775}, {0o700, 0o700}, {0o2700, 0o700}} {
		r.expect("chmod", r.chmod("team", c.mode), 0)
		if m := r.lstat("team").Mode; m&0o7777 != c.want {
			t.Errorf("chmod %o from inside: %o on the host, want %o", c.mode, m&0o7777, c.want)
		}
	}
}

func TestHostSetuidFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("suid=old", "other=x")
	r.setID("suid", 0o4755)
	_, in := r.must("suid")
	if in.Stat.Mode&0o7777 != 0o755 {
		t.Errorf("shown with mode %o", in.Stat.Mode)
	}
	r.expect("write", r.write("suid", "new"), unix.EPERM)
	r.expect("truncate", r.truncate("suid", 0), unix.EPERM)
	r.expect("link", r.link("suid", "again"), unix.EPERM)
	if got := r.content("suid"); got != "old" {
		t.Errorf("content is %q", got)
	}
	r.expect("chmod", r.chmod("suid", 0o755), 0)
	if m := r.lstat("suid").Mode & 0o7777; m != 0o755 {
		t.Errorf("after chmod from inside: %o", m)
	}
	r.expect("write afterwards", r.write("suid", "new"), 0)
}

func TestOwners(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("mine=x")
	r.expect("create", r.create("made", ""), 0)
	r.expect("mkdir", r.mkdir("dir"), 0)
	r.expect("symlink", r.symlink("made", "link"), 0)
	for _, path := range []string{"mine", "made", "dir", "link"} {
		_, in := r.must(path)
		if in.Stat.UID != guestUID || in.Stat.GID != guestGID {
			t.Errorf("%s seems to belong to %d:%d", path, in.Stat.UID, in.Stat.GID)
		}
		r.expect("chown 0:0 "+path, r.chown(path, 0, 0), 0)
		r.expect("chown to a stranger "+path, r.chown(path, 4711, 4712), 0)
		if st := r.lstat(path); st.Uid != uint32(os.Geteuid()) || st.Gid != uint32(os.Getegid()) {
			t.Errorf("%s belongs to %d:%d on the host", path, st.Uid, st.Gid)
		}
	}
	if os.Geteuid() != 0 {
		return // the rest needs files of others
	}
	r.onHost("theirs=x", "group=x")
	if err := os.Chown(r.host("theirs"), 4711, 4711); err != nil {
		t.Skipf("probe: no files can be made for another user: %v", err)
	}
	if err := os.Chown(r.host("group"), 4711, os.Getegid()); err != nil {
		t.Fatal(err)
	}
	for path, gid := range map[string]uint32{"theirs": Nobody, "group": guestGID} {
		_, in := r.must(path)
		if in.Stat.UID != Nobody || in.Stat.GID != gid {
			t.Errorf("%s seems to belong to %d:%d, want %d:%d", path, in.Stat.UID, in.Stat.GID, Nobody, gid)
		}
		r.expect("chown", r.chown(path, guestUID, guestGID), unix.EPERM)
		r.expect("chown to what is shown", r.chown(path, Nobody, gid), 0)
	}
}

// TestOwnerGiven: files that are made go to the caller where the gofer is
// somebody else.
func TestOwnerGiven(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("probe: only root gives files away")
	}
	sh := protected
	sh.Owner = &Owner{UID: 4711, GID: 4712}
	r := newRig(t, sh)
	r.expect("create", r.create("made", ""), 0)
	r.expect("mkdir", r.mkdir("dir"), 0)
	r.expect("symlink", r.symlink("made", "link"), 0)
	r.expect("mknod", r.mknod("node", linux.ModeRegular|0o644), 0)
	for _, path := range []string{"made", "dir", "link", "node"} {
		st := r.lstat(path)
		if st.Uid != 4711 || st.Gid != 4712 {
			t.Errorf("%s belongs to %d:%d on the host", path, st.Uid, st.Gid)
		}
		_, in := r.must(path)
		if in.Stat.UID != guestUID || in.Stat.GID != guestGID {
			t.Errorf("%s seems to belong to %d:%d", path, in.Stat.UID, in.Stat.GID)
		}
	}
}

func TestNoSpecialFilesAreMade(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	for name, typ := range map[string]linux.FileMode{
		"fifo": linux.ModeNamedPipe, "sock": linux.ModeSocket, "chr": linux.ModeCharacterDevice, "blk": linux.ModeBlockDevice,
	} {
		r.expect("mknod "+name, r.mknod(name, typ|0o666), unix.EPERM)
		if r.content(name) != "absent" {
			t.Errorf("%s is on the host", name)
		}
	}
	_, _, err := r.root.BindAt(r.ctx, linux.SOCK_STREAM, "bound", 0o666, 0, 0)
	r.expect("bind", err, unix.EPERM) // upon which the sentry binds one of its own
}

func TestSpecialFilesOfTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	if err := unix.Mkfifo(r.host("fifo"), 0o666); err != nil {
		t.Skipf("probe: no FIFO can be made here: %v", err)
	}
	l, err := net.Listen("unix", r.host("sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	files := map[string]uint16{"fifo": unix.S_IFIFO, "sock": unix.S_IFSOCK}
	if unix.Mknod(r.host("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) == nil {
		files["null"] = unix.S_IFCHR
	}
	for name, typ := range files {
		fd, in := r.must(name)
		if in.Stat.Mode&unix.S_IFMT != typ {
			t.Errorf("%s has mode %o", name, in.Stat.Mode)
		}
		_, _, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
		r.expect("open "+name, err, unix.EPERM)
		_, _, err = fd.OpenAt(r.ctx, unix.O_RDWR)
		r.expect("open for writing "+name, err, unix.EPERM)
		r.expect("chmod "+name, r.chmod(name, 0o600), unix.EPERM)
		r.expect("link "+name, r.link(name, name+"2"), unix.EPERM)
		if _, err := fd.Connect(r.ctx, linux.SOCK_STREAM, 0, 0); err == nil {
			t.Errorf("connected to %s", name)
		}
	}
}

func TestXattrs(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.expect("create", r.create("f", "x"), 0)
	for _, name := range []string{
		"security.capability", "security.selinux", "trusted.x", "system.posix_acl_access", "user.overlay.opaque",
		"user.containers.override_stat", "user.fuseoverlayfs.override_stat", "User.x", "userx", "",
	} {
		r.expect("set "+name, r.setxattr("f", name, "x"), unix.EPERM)
		fd, _ := r.must("f")
		if _, err := fd.GetXattr(r.ctx, name, 100); err == nil {
			t.Errorf("get %s works", name)
		}
		r.expect("remove "+name, fd.RemoveXattr(r.ctx, name), unix.EPERM)
	}
	r.expect("too large", r.setxattr("f", "user.big", strings.Repeat("x", maxXattrValue+1)), unix.E2BIG)
	err := r.setxattr("f", "user.a", "value")
	if err == unix.EOPNOTSUPP {
		t.Skip("probe: the file system has no user.* attributes")
	}
	r.expect("set user.a", err, 0)
	fd, _ := r.must("f")
	if got, err := fd.GetXattr(r.ctx, "user.a", 100); err != nil || got != "value" {
		t.Errorf("get: %q, %v", got, err)
	}
	if _, err := fd.GetXattr(r.ctx, "user.a", 2); err != unix.ERANGE {
		t.Errorf("get into a small buffer: %v", err)
	}
	if names, err := fd.ListXattr(r.ctx, 1000); err != nil || len(names) != 1 || names[0] != "user.a" {
		t.Errorf("list: %v, %v", names, err)
	}
	r.expect("remove", fd.RemoveXattr(r.ctx, "user.a"), 0)
}

func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	outside := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(outside, []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"abs": outside, "dir": filepath.Dir(outside), "up": "../../../../../etc", "proc": "/proc/self/root", "loop": "loop",
	} {
		r.expect("symlink", r.symlink(target, name), 0)
		fd, in := r.must(name)
		if in.Stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("%s has mode %o", name, in.Stat.Mode)
		}
		if got, err := fd.ReadLinkAt(r.ctx); err != nil || got != target {
			t.Errorf("%s: target %q, %v", name, got, err)
		}
		if _, _, err := fd.OpenAt(r.ctx, unix.O_RDONLY); err == nil {
			t.Errorf("%s was opened", name)
		}
		if _, _, err := r.walk(name + "/canary"); err == nil {
			t.Errorf("walked through %s", name)
		}
		if st, err := r.root.WalkStat(r.ctx, []string{name, "canary"}); err != nil || len(st) != 1 {
			t.Errorf("WalkStat through %s: %d entries, %v", name, len(st), err)
		}
		r.expect("chmod", r.chmod(name, 0o777), unix.EOPNOTSUPP)
		r.expect("times", r.setStat(name, linux.Statx{Mask: unix.STATX_MTIME, Mtime: linux.StatxTimestamp{Sec: 1}}), 0)
		r.expect("hard link of the link", r.link(name, name+"2"), 0)
	}
	if st := r.lstat("abs"); st.Mtim.Sec != 1 {
		t.Errorf("the times of the link itself did not change: %d", st.Mtim.Sec)
	}
	var st unix.Stat_t
	if err := unix.Stat(outside, &st); err != nil || st.Mtim.Sec == 1 {
		t.Errorf("the target was touched: %v", err)
	}
}

func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("f=x")
	for _, name := range []string{"", ".", "..", "a/b", "../x", "/etc", "a\x00b", strings.Repeat("n", 256)} {
		_, walkErr := r.root.Walk(r.ctx, name)
		_, mkdirErr := r.root.MkdirAt(r.ctx, name, 0o755, 0, 0)
		_, linkErr := r.root.SymlinkAt(r.ctx, name, "x", 0, 0)
		for what, err := range map[string]error{
			"walk": walkErr, "mkdir": mkdirErr, "symlink": linkErr,
			"unlink": r.root.UnlinkAt(r.ctx, name, 0), "rename": r.root.RenameAt(r.ctx, "f", r.root.ID(), name, 0),
		} {
			if err == nil {
				t.Errorf("%s of %q works", what, name)
			}
		}
	}
	for _, name := range []string{" ", "-rf", "new\nline", "\xff\xfe", strings.Repeat("n", 255), "日本", "a\\b"} {
		r.expect("create", r.create(name, "x"), 0)
		if got := r.content(name); got != "x" {
			t.Errorf("%q holds %q", name, got)
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"", ".", "..", "a", "a/b", "\x00", "...", strings.Repeat("x", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if checkName(name) != nil {
			return
		}
		if name != filepath.Base(name) || !filepath.IsLocal(name) || len(name) > maxName || strings.IndexByte(name, 0) >= 0 {
			t.Errorf("checkName lets %q pass", name)
		}
	})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	sh := protected
	sh.ReadOnly = true
	r := newRig(t, sh)
	r.onHost("f=x", "d/")
	fd, _ := r.must("f")
	for what, err := range map[string]error{
		"create": r.create("new", ""), "write": r.write("f", "y"), "mkdir": r.mkdir("n"), "symlink": r.symlink("a", "b"),
		"link": r.link("f", "g"), "unlink": r.unlink("f"), "rmdir": r.rmdir("d"), "rename": r.rename("f", "g"),
		"chmod": r.chmod("f", 0o600), "truncate": r.truncate("f", 0), "chown": r.chown("f", guestUID, guestGID),
		"mknod": r.mknod("n", linux.ModeRegular|0o600), "setxattr": r.setxattr("f", "user.a", "b"),
		"removexattr": fd.RemoveXattr(r.ctx, "user.a"),
	} {
		r.expect(what, err, unix.EROFS)
	}
	if got, err := r.read("f"); err != nil || got != "x" {
		t.Errorf("read: %q, %v", got, err)
	}
	if _, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDONLY); err != nil || hostFD >= 0 {
		t.Errorf("a descriptor was donated although the host's mount is writable: %d, %v", hostFD, err)
	}
}

func TestSingleFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := serve(t, path, protected)
	r.expect("write", r.write("", "new content"), 0)
	if got, err := r.read(""); err != nil || got != "new content" {
		t.Errorf("read: %q, %v", got, err)
	}
	r.expect("truncate", r.truncate("", 3), 0)
	r.expect("chmod", r.chmod("", 0o4755), 0)
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("on the host: %q, %v", b, err)
	}
	if _, err := r.root.Walk(r.ctx, "x"); err == nil {
		t.Error("walked into a file")
	}
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	want := make(map[string]bool)
	for i := range 2000 {
		name := fmt.Sprintf("a-rather-long-name-so-that-one-answer-is-not-enough-%d", i)
		want[name] = true
		r.onHost("d/" + name)
	}
	r.onHost("d/sub/")
	want["sub"] = true
	fd, _ := r.must("d")
	open, _, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	dir := r.client.NewFD(open)
	for range 2 { // the second after a rewind
		got := make(map[string]bool)
		for count := int32(-8192); ; count = 8192 {
			entries, err := dir.Getdents64(r.ctx, count)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				got[string(e.Name)] = true
				_, in := r.must("d/" + string(e.Name))
				if uint64(e.Ino) != in.Stat.Ino || uint32(e.DevMinor) != in.Stat.DevMinor {
					t.Fatalf("%s: ino %d, dev %d; stat says %d, %d", e.Name, e.Ino, e.DevMinor, in.Stat.Ino, in.Stat.DevMinor)
				}
			}
		}
		if len(got) != len(want) {
			t.Errorf("got %d entries, want %d", len(got), len(want))
		}
	}
	for _, count := range []int32{1, -1, 1 << 30, -1 << 31} {
		if _, err := dir.Getdents64(r.ctx, count); err != nil {
			t.Errorf("Getdents64(%d): %v", count, err)
		}
	}
}

func TestDonation(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("f=content", ".envrc=secret")
	fd, _ := r.must("f")
	open, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDWR)
	if err != nil || hostFD < 0 {
		t.Fatalf("OpenAt: %d, %v", hostFD, err)
	}
	defer unix.Close(hostFD)
	m, err := unix.Mmap(hostFD, 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(m, "CONTENT")
	unix.Munmap(m)
	file := r.client.NewFD(open)
	buf := make([]byte, 16)
	if n, err := file.Read(r.ctx, buf, 0); err != nil || string(buf[:n]) != "CONTENT" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	rc, _ := r.must(".envrc")
	_, hostFD, err = rc.OpenAt(r.ctx, unix.O_RDONLY)
	if err != nil || hostFD < 0 {
		t.Fatalf("open of a protected file for reading: %d, %v", hostFD, err)
	}
	defer unix.Close(hostFD)
	if _, err := unix.Write(hostFD, []byte("x")); err == nil {
		t.Error("the descriptor of a protected file is writable")
	}
	sh := protected
	sh.Donate = false
	r2 := serve(t, r.dir, sh)
	fd2, _ := r2.must("f")
	if _, hostFD, err := fd2.OpenAt(r2.ctx, unix.O_RDWR); err != nil || hostFD >= 0 {
		t.Errorf("without Donate: %d, %v", hostFD, err)
	}
}

func TestLargeReadsAndWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	want := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	r.expect("create", r.create("big", want), 0)
	if got := r.content("big"); got != want {
		t.Error("the content differs")
	}
	fd, _ := r.must("big")
	open, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(hostFD)
	file := r.client.NewFD(open)
	buf := make([]byte, len(want)+100)
	if n, _ := file.Read(r.ctx, buf, 0); string(buf[:n]) != want {
		t.Error("what was read differs")
	}
	if _, err := file.Write(r.ctx, []byte("x"), 1<<63); err == nil {
		t.Error("a write at 2^63 works")
	}
	r.expect("allocate", file.Allocate(r.ctx, 0, 0, 8<<20), 0)
	r.expect("punch a hole", file.Allocate(r.ctx, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EOPNOTSUPP)
	r.expect("allocate too much", file.Allocate(r.ctx, 0, 1<<62, 1<<63), unix.EFBIG)
	r.expect("sync", file.Sync(r.ctx), 0)
	var fs lisafs.StatFS
	r.expect("statfs", r.root.StatFSTo(r.ctx, &fs), 0)
	if fs.BlockSize == 0 || fs.NameLength == 0 {
		t.Errorf("statfs: %+v", fs)
	}
}
