package sharefs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// safeConfig is what git init writes.
const safeConfig = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"

const evilConfig = "[core]\n\tfsmonitor = evil\n"

// workspaceOf is a caller's directory as they are.
func workspaceOf(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, protected)
	r.onHost(".git/objects/", ".git/refs/heads/", ".git/HEAD=ref: refs/heads/main\n", ".git/config="+safeConfig,
		".git/hooks/pre-commit=old", ".envrc=old", ".vscode/settings.json=old", "src/main.go=x", "lib/deep/.npmrc=old",
		"node_modules/a/.vscode/x=1", "node_modules/a/index.js=1", "plain=old", "app/data=1")
	return r
}

// TestLockedNamesThatExist: nothing about them can be changed.
func TestLockedNamesThatExist(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	for _, path := range []string{".envrc", ".vscode/settings.json", ".git/config", ".git/hooks/pre-commit", "lib/deep/.npmrc"} {
		before := r.content(path)
		for what, err := range map[string]error{
			"write":           r.write(path, "new"),
			"truncate":        r.truncate(path, 0),
			"chmod":           r.chmod(path, 0o777),
			"times":           r.setStat(path, linux.Statx{Mask: unix.STATX_MTIME}),
			"xattr":           r.setxattr(path, "user.a", "b"),
			"unlink":          r.unlink(path),
			"rename away":     r.rename(path, "src/taken"),
			"rename onto":     r.rename("plain", path),
			"exchange":        r.renameFlags("plain", path, unix.RENAME_EXCHANGE),
			"exchange from":   r.renameFlags(path, "plain", unix.RENAME_EXCHANGE),
			"link to it":      r.link(path, "src/alias"),
			"create":          r.create(path, "new"),
			"symlink over it": r.symlink("/etc/passwd", path),
		} {
			if err == nil {
				t.Errorf("%s of %s works", what, path)
			}
		}
		if got := r.content(path); got != before {
			t.Errorf("%s holds %q", path, got)
		}
		if got, err := r.read(path); err != nil || got != before {
			t.Errorf("read of %s: %q, %v", path, got, err)
		}
	}
	if got := r.content("plain"); got != "old" {
		t.Errorf("plain holds %q", got)
	}
}

// TestLockedNamesThatAreAbsent: they cannot come to be, in whatever way.
func TestLockedNamesThatAreAbsent(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	for _, path := range []string{
		".mcp.json", ".ENVRC", "src/.envrc", "src/.Envrc", "src/.env\u200crc", ".bashrc", ".vscode/tasks.json", ".claude", ".idea",
		"src/.vscode", "x.code-workspace", ".git/hooks/post-commit", ".git/hooks/x.sample", ".git/config.worktree",
		".git/config.lock", ".git/commondir", "src/.git\u00ad", ".GIT/config",
	} {
		if strings.HasPrefix(path, ".GIT") { // on this file system another directory
			r.onHost(".GIT/")
		}
		for what, err := range map[string]error{
			"create": r.create(path, "new"), "mknod": r.mknod(path, linux.ModeRegular|0o644),
			"symlink": r.symlink("plain", path), "link": r.link("plain", path),
			"rename of a file": r.rename("plain", path), "rename of a directory": r.rename("app", path),
		} {
			r.expect(what+" "+path, err, unix.EROFS)
		}
		if path != "src/.git\u00ad" { // a repository may be made
			r.expect("mkdir "+path, r.mkdir(path), unix.EROFS)
		}
		if got := r.content(path); got != "absent" {
			t.Errorf("%s holds %q", path, got)
		}
	}
	for _, path := range []string{".config", ".cargo", ".local"} {
		r.expect("mkdir "+path, r.mkdir(path), 0)
	}
	r.expect("mkdir .config/git", r.mkdir(".config/git"), unix.EROFS)
	r.expect("create .cargo/config.toml", r.create(".cargo/config.toml", "x"), unix.EROFS)
	r.expect("mkdir .local/share", r.mkdir(".local/share"), 0)
	r.expect("mkdir .local/share/systemd", r.mkdir(".local/share/systemd"), unix.EROFS)
	r.expect("create .cargo/other", r.create(".cargo/other", "x"), 0)
}

// TestDirectoriesAboveLockedNames cannot be moved out of the way.
func TestDirectoriesAboveLockedNames(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	for _, path := range []string{"lib", "lib/deep", ".git", ".git/hooks", ".vscode"} {
		r.expect("rename "+path, r.rename(path, "elsewhere"), unix.EROFS)
	}
	r.expect("rmdir", r.rmdir(".vscode"), unix.EROFS)
	r.expect("rename of a dependency", r.rename("node_modules/a", "node_modules/.a-old"), 0)
	r.expect("rename of a plain directory", r.rename("app", "app2"), 0)
}

// TestNewDirectoryInAnOldPlace: what takes the place of a directory of the
// caller's is guarded as that was.
func TestNewDirectoryInAnOldPlace(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	r.onHost("app/sub/")
	r.expect("move away", r.rename("app", "old"), 0)
	r.expect("make again", r.mkdir("app"), 0)
	r.expect("create", r.create("app/.envrc", "x"), unix.EROFS)
	r.expect("deeper", r.mkdir("app/sub"), 0)
	r.expect("create deeper", r.create("app/sub/.envrc", "x"), unix.EROFS)

	r.expect("prepare", r.mkdir("fresh"), 0)
	r.expect("prepare", r.create("fresh/.envrc", "x"), 0)
	r.expect("prepare", r.mkdir("clean"), 0)
	r.expect("prepare", r.mkdir("clean/sub"), 0)
	r.expect("empty the place", r.rmdir("app/sub"), 0)
	r.expect("empty the place", r.rmdir("app"), 0)
	r.expect("put a prepared directory there", r.rename("fresh", "app"), unix.EROFS)
	r.expect("put a clean directory there", r.rename("clean", "app"), 0)
	r.expect("create in it", r.create("app/.envrc", "x"), unix.EROFS)
	r.expect("create deeper in it", r.create("app/sub/.envrc", "x"), unix.EROFS)

	r.onHost("empty/")
	r.expect("replace an empty directory", r.rename("fresh", "empty"), unix.EROFS)
	r.expect("exchange", r.renameFlags("fresh", "src", unix.RENAME_EXCHANGE), unix.EROFS)
	r.expect("become the first part of a path", r.mkdir("x"), 0)
	r.expect("become the first part of a path", r.mkdir("x/git"), 0)
	r.expect("become the first part of a path", r.rename("x", ".config"), unix.EROFS)
	if r.content("app/.envrc") != "absent" || r.content("app/sub/.envrc") != "absent" {
		t.Error("a locked name is in an old place")
	}
}

// TestLinkInAnOldPlace: no link stands where a directory of the caller's was.
func TestLinkInAnOldPlace(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	r.onHost("d/", "e/", "app/sub/", "top/mid/low/", "node_modules/b/")
	r.expect("prepare", r.mkdir("inn"), 0)
	r.expect("prepare", r.create("inn/.envrc", "evil"), 0)
	r.expect("an ordinary link", r.symlink("inn", "link"), 0)

	r.expect("rmdir", r.rmdir("d"), 0)
	r.expect("symlink", r.symlink("inn", "d"), unix.EROFS)
	r.expect("symlink in other case", r.symlink("inn", "D"), unix.EROFS)
	r.expect("rename of a link", r.rename("link", "d"), unix.EROFS)
	r.expect("hard link of a link", r.link("link", "d"), unix.EROFS)
	r.expect("a file there", r.create("d", "x"), 0)
	r.expect("exchange", r.renameFlags("link", "d", unix.RENAME_EXCHANGE), unix.EROFS)
	r.expect("exchange from it", r.renameFlags("d", "link", unix.RENAME_EXCHANGE), unix.EROFS)

	r.expect("move away", r.rename("app", "inn/app"), 0)
	r.expect("symlink", r.symlink("inn", "app"), unix.EROFS)
	r.expect("make again", r.mkdir("app"), 0)
	r.expect("symlink below", r.symlink("../inn", "app/sub"), unix.EROFS)
	r.expect("another link below", r.symlink("../inn", "app/other"), 0)

	for _, dir := range []string{"top/mid/low", "top/mid", "top"} {
		r.expect("rmdir "+dir, r.rmdir(dir), 0)
	}
	r.expect("prepare", r.mkdir("tree"), 0)
	r.expect("prepare", r.symlink("../inn", "tree/mid"), 0)
	r.expect("put a tree with a link there", r.rename("tree", "top"), unix.EROFS)
	r.expect("another name", r.rename("tree/mid", "tree/other"), 0)
	r.expect("put it there then", r.rename("tree", "top"), 0)
	r.expect("rename to the place", r.rename("top/other", "top/mid"), unix.EROFS)

	r.expect("rmdir of a dependency", r.rmdir("node_modules/b"), 0)
	r.expect("link of a dependency", r.symlink("a", "node_modules/b"), 0)
}

// TestDirectoriesOfTheSandbox: in them, locked names are allowed.
func TestDirectoriesOfTheSandbox(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	r.expect("mkdir", r.mkdir("clone"), 0)
	r.expect("mkdir", r.mkdir("clone/.vscode"), 0)
	r.expect("create", r.create("clone/.vscode/settings.json", "{}"), 0)
	r.expect("write", r.write("clone/.vscode/settings.json", "{ }"), 0)
	r.expect("create", r.create("clone/.envrc", "x"), 0)
	r.expect("chmod", r.chmod("clone/.envrc", 0o755), 0)
	r.expect("rename", r.rename("clone/.envrc", "clone/.envrc2"), 0)
	r.expect("rename back", r.rename("clone/.envrc2", "clone/.envrc"), 0)
	r.expect("rename the directory", r.rename("clone", "clone2"), 0)
	r.expect("write after that", r.write("clone2/.envrc", "y"), 0)
	r.expect("rename out", r.rename("clone2/.envrc", ".envrc"), unix.EROFS)
	r.expect("rename out", r.rename("clone2/.vscode", "src/.vscode"), unix.EROFS)
	r.expect("link out", r.link("clone2/.envrc", "src/.envrc"), unix.EROFS)
	r.expect("remove", r.unlink("clone2/.envrc"), 0)
	r.expect("in a dependency", r.write("node_modules/a/.vscode/x", "2"), 0)
	r.expect("new in a dependency", r.create("node_modules/a/.npmrc", "2"), 0)
}

// gitInit makes a repository the way git does.
func (r *rig) gitInit(dir string) {
	r.t.Helper()
	steps := []struct {
		what string
		err  error
	}{
		{"mkdir", r.mkdir(dir)},
		{"hooks", r.mkdir(dir + "/hooks")},
		{"a sample", r.create(dir+"/hooks/pre-commit.sample", "#!/bin/sh\n")},
		{"HEAD", r.create(dir+"/HEAD", "ref: refs/heads/main\n")},
		{"refs", r.mkdir(dir + "/refs")},
		{"lock", r.create(dir+"/config.lock", safeConfig)},
		{"config", r.rename(dir+"/config.lock", dir+"/config")},
		{"mode probe", r.chmod(dir+"/config", 0o744)},
		{"mode back", r.chmod(dir+"/config", 0o644)},
		{"objects", r.mkdir(dir + "/objects")},
		{"lock again", r.create(dir+"/config.lock", safeConfig+"[remote \"origin\"]\n\turl = https://example.com/a\n")},
		{"config again", r.rename(dir+"/config.lock", dir+"/config")},
	}
	for _, s := range steps {
		r.expect("git init: "+s.what, s.err, 0)
	}
	if got := r.content(dir + "/config"); !strings.Contains(got, "origin") {
		r.t.Errorf("%s/config holds %q", dir, got)
	}
}

// TestRepositoriesOfTheSandbox: git can make and use them, and nothing in them
// can be made to run on the host.
func TestRepositoriesOfTheSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	for _, dir := range []string{".git", "bare.git"} {
		r.gitInit(dir)
		before := r.content(dir + "/config")
		r.expect("evil lock", r.create(dir+"/config.lock", evilConfig), 0)
		for what, err := range map[string]error{
			"evil config":          r.rename(dir+"/config.lock", dir+"/config"),
			"other case":           r.rename(dir+"/config.lock", dir+"/CONFIG"),
			"exchange":             r.renameFlags(dir+"/config.lock", dir+"/config", unix.RENAME_EXCHANGE),
			"direct write":         r.write(dir+"/config", evilConfig),
			"truncate":             r.truncate(dir+"/config", 0),
			"link from":            r.link(dir+"/config", "alias"),
			"config.worktree":      r.create(dir+"/config.worktree", evilConfig),
			"commondir":            r.create(dir+"/commondir", "/tmp"),
			"hook":                 r.create(dir+"/hooks/pre-commit", "evil"),
			"renamed hook":         r.rename(dir+"/hooks/pre-commit.sample", dir+"/hooks/pre-commit"),
			"linked hook":          r.link(dir+"/hooks/pre-commit.sample", dir+"/hooks/pre-push"),
			"hook by link":         r.symlink("../HEAD", dir+"/hooks/pre-commit"),
			"hook by link, sample": r.symlink("../HEAD", dir+"/hooks/a.sample"),
			"hook directory":       r.mkdir(dir + "/hooks/x"),
		} {
			r.expect(dir+": "+what, err, unix.EROFS)
		}
		r.expect("drop the lock", r.unlink(dir+"/config.lock"), 0)
		r.expect("drop the hooks", r.unlink(dir+"/hooks/pre-commit.sample"), 0)
		r.expect("drop the hooks", r.rmdir(dir+"/hooks"), 0)
		r.expect("hooks as a link", r.symlink("/tmp", dir+"/hooks"), unix.EROFS)
		r.expect("a prepared directory", r.mkdir("prepared"), 0)
		r.expect("a prepared directory", r.create("prepared/pre-commit", "evil"), 0)
		r.expect("hooks from elsewhere", r.rename("prepared", dir+"/hooks"), unix.EROFS)
		r.expect("clean up", r.unlink("prepared/pre-commit"), 0)
		r.expect("clean up", r.rmdir("prepared"), 0)
		r.expect("remove config", r.unlink(dir+"/config"), 0)
		r.expect("config as a link", r.symlink("../evil", dir+"/config"), unix.EROFS)
		r.expect("config as a file", r.create(dir+"/config", before), unix.EROFS)
	}
}

// TestOpenConfig: a descriptor that was open for writing before a configuration
// passed leads nowhere afterwards.
func TestOpenConfig(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.gitInit("repo")
	dir, _ := r.must("repo")
	_, _, lockFD, err := dir.OpenCreateAt(r.ctx, "config.lock", unix.O_RDWR, 0o644, 0, 0)
	if err != nil || lockFD < 0 {
		t.Fatalf("open the lock: %d, %v", lockFD, err)
	}
	defer unix.Close(lockFD)
	if _, err := unix.Write(lockFD, []byte(safeConfig)); err != nil {
		t.Fatal(err)
	}
	r.expect("link the lock", r.link("repo/config.lock", "alias"), 0)
	r.expect("rename", r.rename("repo/config.lock", "repo/config"), 0)
	if _, err := unix.Pwrite(lockFD, []byte(evilConfig), 0); err != nil {
		t.Fatal(err)
	}
	r.expect("write to the alias", r.write("alias", evilConfig), 0)
	if got := r.content("repo/config"); got != safeConfig {
		t.Errorf("the configuration holds %q", got)
	}

	r.expect("mkdir", r.mkdir("late"), 0)
	late, _ := r.must("late")
	_, _, configFD, err := late.OpenCreateAt(r.ctx, "config", unix.O_RDWR, 0o644, 0, 0)
	if err != nil || configFD < 0 {
		t.Fatalf("open a config: %d, %v", configFD, err)
	}
	defer unix.Close(configFD)
	if _, err := unix.Write(configFD, []byte(safeConfig)); err != nil {
		t.Fatal(err)
	}
	held, _ := r.must("late/config")
	r.expect("refs", r.mkdir("late/refs"), 0)
	r.expect("objects", r.mkdir("late/objects"), 0)
	if _, err := unix.Pwrite(configFD, []byte(evilConfig), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := held.OpenAt(r.ctx, unix.O_RDWR); err != unix.EROFS {
		t.Errorf("open by an old control FD: %v", err)
	}
	if got := r.content("late/config"); got != safeConfig {
		t.Errorf("the configuration holds %q", got)
	}
}

// TestBecomingARepository: a directory that git would believe must deserve it.
func TestBecomingARepository(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.expect("mkdir", r.mkdir("d"), 0)
	r.expect("refs", r.mkdir("d/refs"), 0)
	r.expect("elsewhere", r.mkdir("e"), 0)
	complete := func() map[string]error {
		return map[string]error{
			"mkdir": r.mkdir("d/objects"), "other case": r.mkdir("d/OBJECTS"), "file": r.create("d/objects", "x"),
			"symlink": r.symlink("../e", "d/objects"), "rename": r.rename("e", "d/objects"),
			"link": r.link("plain", "d/objects"),
		}
	}
	r.expect("plain", r.create("plain", "x"), 0)
	for what, make := range map[string]func() error{
		"an evil config":   func() error { return r.create("d/config", evilConfig) },
		"a linked config":  func() error { return r.symlink("../plain", "d/config") },
		"a commondir":      func() error { return r.create("d/commondir", "../x") },
		"hooks by link":    func() error { return r.symlink("../e", "d/hooks") },
		"hooks, not named": func() error { return r.create("d/hooks", "x") },
	} {
		r.expect(what, make(), 0)
		for how, err := range complete() {
			r.expect(how+" with "+what, err, unix.EROFS)
		}
		for _, name := range []string{"config", "commondir", "hooks"} {
			if _, err := os.Lstat(r.host("d/" + name)); err == nil {
				r.expect("remove", r.unlink("d/"+name), 0)
			}
		}
	}
	r.expect("a hook", r.mkdir("d/hooks"), 0)
	hooks, _ := r.must("d/hooks")
	r.expect("a hook", r.create("d/hooks/pre-commit", "evil"), 0)
	r.expect("with a hook", r.mkdir("d/objects"), unix.EROFS)
	r.expect("remove", r.unlink("d/hooks/pre-commit"), 0)
	r.expect("clean", r.mkdir("d/objects"), 0)
	if _, _, _, err := hooks.OpenCreateAt(r.ctx, "pre-commit", unix.O_WRONLY, 0o755, 0, 0); err != unix.EROFS {
		t.Errorf("a hook by an old control FD: %v", err)
	}
	r.expect("rename the repository", r.rename("d", "d2"), 0)
	r.expect("a hook after a rename", r.create("d2/hooks/pre-commit", "evil"), unix.EROFS)
	r.expect("config after a rename", r.create("d2/config", evilConfig), unix.EROFS)
}

// TestDotGitTricks: what .git may be and where it may come from.
func TestDotGitTricks(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	r.expect("prepared", r.mkdir("prepared"), 0)
	r.expect("prepared", r.create("prepared/config", evilConfig), 0)
	r.expect("rename to .git", r.rename("prepared", "src/.git"), unix.EROFS)
	r.expect("symlink", r.symlink("../prepared", "src/.git"), unix.EROFS)
	r.expect("file in the caller's directory", r.create("src/.git", "gitdir: ../prepared\n"), unix.EROFS)
	r.expect("link", r.link("plain", "src/.git"), unix.EROFS)
	r.expect("worktree", r.mkdir("wt"), 0)
	r.expect("file in a directory of the sandbox", r.create("wt/.git", "gitdir: ../.git/worktrees/wt\n"), 0)
	r.expect("its worktree entry", r.mkdir(".git/worktrees"), 0)
	r.expect("its worktree entry", r.mkdir(".git/worktrees/wt"), 0)
	r.expect("its common directory", r.create(".git/worktrees/wt/commondir", "../..\n"), 0)
	r.expect("its own config", r.create(".git/worktrees/wt/config.worktree", evilConfig), unix.EROFS)
	r.expect("commit", r.create(".git/index.lock", "x"), 0)
	r.expect("commit", r.rename(".git/index.lock", ".git/index"), 0)
	r.expect("branch called config", r.create(".git/refs/heads/config", "0\n"), 0)
	r.expect("branch called hooks", r.mkdir(".git/refs/heads/hooks"), 0)
	r.expect("branch in it", r.create(".git/refs/heads/hooks/x", "0\n"), 0)
	r.gitInit("src/.git")
	r.expect("move a repository's directory", r.rename("src/.git", "src/git"), 0)
	r.expect("its config, elsewhere", r.create("src/git/x", "x"), 0)
	r.expect("its config, elsewhere", r.rename("src/git/x", "src/git/config"), unix.EROFS)
	r.expect("and back", r.rename("src/git", "src/.git"), unix.EROFS)
}

// TestUnprotected: without Protect, only what concerns the host itself holds.
func TestUnprotected(t *testing.T) {
	t.Parallel()
	sh := protected
	sh.Protect = false
	r := newRig(t, sh)
	r.onHost(".envrc=old", "d/.git/config=old")
	r.expect("write", r.write(".envrc", "new"), 0)
	r.expect("write", r.write("d/.git/config", evilConfig), 0)
	r.expect("rename", r.rename("d/.git", ".git"), 0)
	r.expect("chmod", r.chmod(".envrc", 0o4755), 0)
	if m := r.lstat(".envrc").Mode & 0o7777; m != 0o755 {
		t.Errorf("mode %o", m)
	}
	r.expect("exchange", r.renameFlags(".envrc", ".git", unix.RENAME_EXCHANGE), 0)
	r.expect("whiteout", r.renameFlags(".envrc", "x", unix.RENAME_WHITEOUT), unix.EINVAL)
	r.expect("noreplace", r.renameFlags(".envrc", "d", unix.RENAME_NOREPLACE), unix.EEXIST)
}

// TestNoTraces: refusing leaves nothing behind.
func TestNoTraces(t *testing.T) {
	t.Parallel()
	r := workspaceOf(t)
	before := tree(t, r.dir)
	for _, path := range []string{".mcp.json", ".claude", ".bashrc", ".git/hooks/post-commit", ".git/config", "src/.idea"} {
		_ = r.create(path, "x")
		_ = r.mkdir(path)
		_ = r.symlink("x", path)
		_ = r.mknod(path, linux.ModeNamedPipe|0o600)
	}
	if after := tree(t, r.dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(path + " " + fi.Mode().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestTwoSharesOfOneDirectory: what a sandbox loses through one share is not
// made anew through another.
func TestTwoSharesOfOneDirectory(t *testing.T) {
	t.Parallel()
	made := newMadeDirs()
	dir := t.TempDir()
	a, b := serveKnowing(t, dir, made), serveKnowing(t, dir, made)
	a.onHost("app/data=x", "other/")
	a.expect("move away through one", a.rename("app", "old"), 0)
	b.expect("make again through the other", b.mkdir("app"), 0)
	b.expect("create", b.create("app/.envrc", "x"), unix.EROFS)
	a.expect("create", a.create("app/.envrc", "x"), unix.EROFS)
	b.expect("make", b.mkdir("new"), 0)
	a.expect("the sandbox's own", a.create("new/.envrc", "x"), 0)
}

// TestMadeDirsAreBounded: past what can be remembered, nothing is the sandbox's.
func TestMadeDirsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMadeDirs()
	for i := range maxLost + 1 {
		m.lose(key{ino: uint64(i)}, "x")
	}
	if !m.takesPlace(key{ino: 1 << 40}, "y") {
		t.Error("a new directory counts as the sandbox's although places were forgotten")
	}
	k := key{ino: 5}
	m.add(k, false)
	if !m.has(k) || m.takesPlace(k, "x") {
		t.Error("a directory of the sandbox is not its own")
	}
	m.add(k, true)
	if m.has(k) || !m.takesPlace(k, "x") {
		t.Error("a directory in another's place is the sandbox's own")
	}
}
