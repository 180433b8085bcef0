package sharefs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// steps are what programs do in a caller's directory inside a real sandbox, as
// root there, and whether they may. The directory is a repository of the
// caller's with one commit.
var steps = []struct {
	name, script string
	ok           bool
}{
	{"commit", "echo 2 >> f && git commit -qam two && git log --oneline | grep -q two", true},
	{"branch and merge", "git checkout -q -b side && echo 3 > g && git add g && git commit -qm three && git checkout -q main && git merge -q side", true},
	{"stash", "echo 4 >> f && git stash -q && git stash pop -q && git checkout -q f", true},
	{"rebase", "git checkout -q -b r HEAD~1 && echo 5 > h && git add h && git commit -qm five && git rebase -q main && git checkout -q main", true},
	{"gc", "git gc -q && git fsck", true},
	{"worktree", "git worktree add -q wt -b wt && cd wt && echo 6 > i && git add i && git commit -qm six && test -z \"$(git status --short)\"", true},
	{"config of the caller's repository", "git config user.name evil", false},
	{"fsmonitor there", "git config core.fsmonitor evil", false},
	{"hook there", "echo evil > .git/hooks/post-commit", false},
	{"hooks directory there", "mv .git/hooks .git/h", false},
	{"the repository itself", "mv .git git-old", false},

	{"init", "git init -q new && cd new && echo 1 > f && git add f && git commit -qm one && git config user.name A && git remote add origin /ws && git fetch -q", true},
	{"file modes in it", "cd new && test \"$(git config core.filemode)\" = true", true},
	{"fsmonitor in it", "cd new && git config core.fsmonitor evil", false},
	{"hooks path in it", "cd new && git config core.hooksPath evil", false},
	{"alias in it", "cd new && git config alias.st '!evil'", false},
	{"hook in it", "cd new && cp f .git/hooks/post-commit", false},
	{"clone", "git clone -q . copy && cd copy && test -z \"$(git status --short)\" && test -f .vscode/settings.json && git push -q origin HEAD:refs/heads/pushed", true},
	{"submodule", "cd copy && git submodule add -q /ws/new sub && git commit -qm sub && git submodule status", true},
	{"clone with submodules", "git clone -q --recurse-submodules copy copy2 && test -f copy2/sub/f", true},
	{"bare", "git clone -q --bare new bare.git && git -C new push -q /ws/bare.git HEAD:refs/heads/x && git -C bare.git log -1 --oneline x", true},
	{"fsmonitor in the bare one", "git -C bare.git config core.fsmonitor evil", false},

	{"locked name", "echo evil > .envrc", false},
	{"locked name that is there", "echo evil >> .vscode/settings.json", false},
	{"tar", "tar -C / -cf - etc/passwd etc/group | tar -xpf - && test -f etc/passwd", true},
	{"cp -a", "cp -a etc etc2 && cp -a /etc/passwd pw && mv etc2 etc3 && rm -r etc etc3 pw", true},
	{"install", "install -o 1234 -g 1234 -m 4755 /bin/true t && test \"$(stat -c %a t)\" = 755 && rm t", true},
	{"fifo", "mkfifo p && (echo hi > p &) && test \"$(cat p)\" = hi && rm p", true},
	{"device", "mknod d c 1 3", false},
	{"mmap", "python3 -c 'import mmap; f=open(\"m\",\"w+b\"); f.truncate(1<<20); m=mmap.mmap(f.fileno(),0); m[:2]=b\"hi\"; m.flush(); assert open(\"m\",\"rb\").read(2)==b\"hi\"' && rm m", true},
	{"database", "python3 -c 'import sqlite3; c=sqlite3.connect(\"db\"); c.execute(\"create table t(a)\"); c.commit()' && rm db", true},
	{"socket", "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind(\"s\"); s.listen(); socket.socket(socket.AF_UNIX).connect(\"s\")' && rm s", true},
	{"environment", "python3 -m venv --without-pip v && v/bin/python -c 'print(1)' && rm -r v", true},
}

// TestToolsInside runs real programs in a real sandbox over a share.
func TestToolsInside(t *testing.T) {
	if os.Getenv("SHAREFS_TEST_HOW") != "" {
		t.Skip("probe: the first run tests this")
	}
	for _, program := range []string{"git", "python3"} {
		if p, err := exec.LookPath(program); err != nil || !strings.HasPrefix(p, "/usr/bin/") && program == "git" {
			t.Skipf("probe: %s is not in the host template: %v", program, err)
		}
	}
	testenv.NeedBoundary(t, sandbox.GVisor)
	t.Cleanup(testenv.Cleanup)
	t.Run("root", func(t *testing.T) { toolsInside(t, testenv.New(t)) })
	t.Run("user", func(t *testing.T) {
		e := testenv.New(t)
		e.AsUser(23456)
		toolsInside(t, e)
	})
}

func toolsInside(t *testing.T, e *testenv.Env) {
	dir := filepath.Join(e.Home, "ws")
	var script strings.Builder
	script.WriteString("export HOME=/tmp/h GIT_CONFIG_NOSYSTEM=1; mkdir -p $HOME; git config --global user.email a@example.com; git config --global user.name A; git config --global protocol.file.allow always\n")
	for i, s := range steps {
		fmt.Fprintf(&script, "(cd /ws; %s) >/tmp/out 2>&1; echo STEP %d $?; tail -3 /tmp/out\n", s.script, i)
	}
	host(t, dir, script.String())
	e.Own(dir)
	before := contents(t, dir)
	r := e.Belljar("run", "-u", "root", "-v", dir+":/ws", "--", "sh", "/ws/steps.sh")
	if r.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	for i, s := range steps {
		_, rest, ran := strings.Cut(r.Stdout, fmt.Sprintf("STEP %d ", i))
		said, _, _ := strings.Cut(rest, "STEP ")
		if ok := strings.HasPrefix(said, "0\n"); !ran || ok != s.ok {
			t.Errorf("%s: ran %t, works %t, want %t: %s", s.name, ran, ok, s.ok, said)
		}
	}
	for path, want := range before {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s changed: %q, %v", path, got, err)
		}
	}
	if !strings.Contains(r.Stderr, "copy/.vscode") || !strings.Contains(r.Stderr, "bare.git") {
		t.Errorf("the list at the end lacks what was made: %s", r.Stderr)
	}
}

// host makes the caller's directory.
func host(t *testing.T, dir, script string) {
	t.Helper()
	for name, text := range map[string]string{"f": "1\n", ".vscode/settings.json": "{}\n", "steps.sh": script} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "one"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

// contents reads the files that must stay as they are.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, name := range []string{".git/config", ".git/hooks/pre-commit.sample", ".vscode/settings.json"} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = string(b)
	}
	return out
}
