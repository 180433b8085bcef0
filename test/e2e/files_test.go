package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestPauseFiles: a pause without memory keeps files and nothing else, says so of
// every process, and what is resumed has booted anew.
func TestPauseFiles(t *testing.T) {
	e := setup(t)
	want(t, e.Belljar("create", "--name", "work", "--", "sh", "-c", "echo out; exec sleep 100000"), 0)
	b := &box{e, t, "work"}
	logged := strings.TrimSpace(want(t, e.Belljar("exec", "-d", b.name, "--", "sh", "-c", "echo logged; exec sleep 100000"), 0).Stdout)
	done := strings.TrimSpace(want(t, e.Belljar("exec", "-d", b.name, "--", "sh", "-c", "exit 3"), 0).Stdout)
	contains(t, want(t, e.Belljar("wait", b.name, "--process", done), 0).Stdout, "3")
	before := strings.Fields(want(t, b.sh("echo kept >~/file; echo gone >/dev/shm/a; cat /proc/sys/kernel/random/boot_id; hostname"), 0).Stdout)
	end := time.Now().Add(20 * time.Second)
	for want(t, e.Belljar("logs", b.name, "--process", logged), 0).Stdout != "logged\n" {
		if time.Now().After(end) {
			t.Fatal("nothing is logged")
		}
	}
	want(t, e.Belljar("pause", "--memory=false", b.name), 0)
	b.rests()
	sb := record(t, e, b.name)
	if sb.PausedKind != sandbox.KindFiles || sb.Command == nil || sb.Command.Exit == nil || sb.Command.Exit.Reason != sandbox.ReasonPaused {
		t.Errorf("paused: %+v, %+v", sb, sb.Command)
	}
	// Whoever waits for a process, or reads its log, is told; what had ended
	// before ended as it did.
	contains(t, want(t, e.Belljar("logs", "-f", b.name, "--process", logged), 0).Stdout, "logged")
	contains(t, want(t, e.Belljar("wait", b.name, "--process", logged), 0).Stdout, "137")
	contains(t, want(t, e.Belljar("wait", b.name, "--process", done), 0).Stdout, "3")
	// A list of files needs no resume.
	contains(t, want(t, e.Belljar("diff", b.name), 0).Stdout, "A /home/user/file")

	killDaemon(t, e)
	after := strings.Fields(want(t, b.sh("cat ~/file; ls /dev/shm; cat /proc/sys/kernel/random/boot_id; hostname; pgrep sleep"), 1).Stdout)
	if len(after) != 3 || after[0] != "kept" || after[1] == before[0] || after[2] != before[1] {
		t.Errorf("before %q, afterwards %q", before, after)
	}
	sb = record(t, e, b.name)
	if sb.State != sandbox.Running || sb.Generation != 2 || sb.PausedKind != "" || len(images(t, e)) != 0 {
		t.Errorf("resumed: %+v, images %v", sb, images(t, e))
	}
	if got := want(t, e.Belljar("logs", b.name, "--process", logged), 0).Stdout; got != "logged\n" {
		t.Errorf("the log afterwards: %q", got)
	}
	for _, flags := range [][]string{{}, {"--memory=false"}, {}} { // one after another
		want(t, e.Belljar(append([]string{"pause", b.name}, flags...)...), 0)
		b.rests()
		if got := want(t, b.sh("cat ~/file"), 0).Stdout; got != "kept\n" {
			t.Errorf("%q", got)
		}
	}
}

// TestPauseFilesRefused: what would end with its command is not paused without it.
func TestPauseFilesRefused(t *testing.T) {
	e := setup(t)
	want(t, e.Belljar("run", "-d", "--rm", "--name", "once", "--", "sleep", "1000"), 0)
	r := want(t, e.Belljar("pause", "--memory=false", "once"), 125)
	contains(t, r.Stderr, "as long as its command", "hint")
	if sb := record(t, e, "once"); sb.State != sandbox.Running || sb.Generation != 1 {
		t.Errorf("%+v", sb)
	}
}

// TestPauseFilesCrashPoints has the daemon die at each step of a pause without
// memory and of the resume: the files are there afterwards.
func TestPauseFilesCrashPoints(t *testing.T) {
	e := setup(t)
	for _, point := range manager.PauseCrashPoints() {
		if point == manager.CrashPausedKilled {
			continue // as with memory
		}
		t.Run(point, func(t *testing.T) {
			b := create(t, e, "work")
			want(t, b.sh("echo here >~/file"), 0)
			act := []string{"resume", b.name}
			if strings.HasPrefix(point, "pause.") {
				act = []string{"pause", "--memory=false", b.name}
			} else {
				want(t, e.Belljar("pause", "--memory=false", b.name), 0)
			}
			crashDoing(t, e, point, act...)
			if got := want(t, b.sh("cat ~/file"), 0).Stdout; got != "here\n" {
				t.Errorf("got %q", got)
			}
			want(t, e.Belljar("pause", "--memory=false", b.name), 0)
			b.rests()
			want(t, e.Belljar("kill", b.name), 0)
			if left := images(t, e); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestDiff: what was added, changed and deleted, and nothing of Belljar's own.
func TestDiff(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	if got := want(t, e.Belljar("diff", b.name), 0).Stdout; got != "" {
		t.Errorf("of a new one: %q", got)
	}
	const change = `set -e
mkdir -p /srv/a && printf 12345 >/srv/a/file && ln -s file /srv/a/link && ln /srv/a/file /srv/a/same
printf x >"$(printf '/srv/\377\033[31m\nname')"
rm /usr/bin/tee && echo >>/etc/passwd && rm -r /etc/alternatives && mkdir /etc/alternatives && echo >/etc/alternatives/mine`
	want(t, b.exec("-u", "root", "--", "sh", "-c", change), 0)
	for _, paused := range []bool{false, true} {
		if paused {
			b.paused()
		}
		out := want(t, e.Belljar("diff", b.name), 0).Stdout
		for _, line := range []string{
			"A /srv/a\n", "A /srv/a/file\n", "A /srv/a/link\n", "A /srv/a/same\n", `A /srv/\xff\x1b[31m\nname` + "\n", "D /usr/bin/tee\n",
			"C /usr/bin\n", "C /etc/passwd\n", "C /etc/alternatives\n", "A /etc/alternatives/mine\n",
		} {
			contains(t, out, line)
		}
		if strings.Contains(out, "belljar") || strings.Contains(out, "\x1b") || !strings.Contains(out, "D /etc/alternatives/") {
			t.Errorf("%q", out)
		}
	}
	var list []struct {
		Change, Path, Type, Mode, Target string
		Size                             int64
		SameAs                           string `json:"same_as"`
	}
	if err := json.Unmarshal([]byte(want(t, e.Belljar("diff", b.name, "-o", "json"), 0).Stdout), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for i, d := range list {
		names[d.Path] = i
	}
	f, l := list[names["/srv/a/file"]], list[names["/srv/a/link"]]
	if same := list[names["/srv/a/same"]]; same.Type == "hard-link" {
		if same.SameAs != "/srv/a/file" {
			t.Errorf("%+v", same)
		}
	} else {
		f = same // whichever comes first has it all
	}
	if f.Change != "A" || f.Type != "file" || f.Size != 5 || f.Mode != "0644" || l.Type != "symlink" || l.Target != "file" {
		t.Errorf("%+v, %+v", f, l)
	}
	contains(t, want(t, e.Belljar("diff", "nobody"), 125).Stderr, "nobody")
}

// TestSnapshotOfFiles: what starts from it boots anew with the files, and may be
// of another size.
func TestSnapshotOfFiles(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work", "--env", "GREETING=hello")
	want(t, b.sh("echo kept >~/file"), 0)
	want(t, e.Belljar("exec", "-d", b.name, "--", "sleep", "100000"), 0)
	want(t, e.Belljar("snapshot", "create", b.name, "files:v1", "--memory=false"), 0)
	want(t, b.sh("pgrep sleep >/dev/null && echo later >~/file"), 0)
	for _, name := range []string{"a", "c"} {
		c := create(t, e, name, "--snapshot", "files:v1", "--memory", "640M")
		got := want(t, c.sh("cat ~/file; pgrep sleep; echo $GREETING; hostname; sed -n 's/MemTotal: *//p' /proc/meminfo"), 0).Stdout
		if got != "kept\nhello\n"+name+"\n655360 kB\n" {
			t.Errorf("%q", got)
		}
		want(t, c.sh("echo mine >~/file"), 0)
	}
	// Of one that is paused without memory, it is taken as it is.
	want(t, e.Belljar("pause", "--memory=false", b.name), 0)
	contains(t, want(t, e.Belljar("snapshot", "create", b.name, "no"), 125).Stderr, "paused with files")
	want(t, e.Belljar("snapshot", "create", b.name, "files:v2", "--memory=false"), 0)
	want(t, e.Belljar("kill", b.name), 0)
	if got := want(t, create(t, e, "d", "--snapshot", "files:v2").sh("cat ~/file"), 0).Stdout; got != "later\n" {
		t.Errorf("%q", got)
	}
}

// TestApply: a directory is kept, and put into another sandbox or onto the host,
// where it is shown and asked for.
func TestApply(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	want(t, b.sh("mkdir -p ~/site/sub && cd ~/site && echo one >one && echo two >sub/two && ln -s one inside && ln -s /etc/passwd out && mkfifo pipe"), 0)
	want(t, e.Belljar("snapshot", "create", b.name, "site:v1", "--dir", "/home/user/site"), 0)
	want(t, b.sh("echo changed >~/site/one"), 0)
	contains(t, want(t, e.Belljar("snapshot", "ls"), 0).Stdout, "site:v1", "directory")

	other := create(t, e, "other")
	r := want(t, e.Belljar("apply", "site:v1", "other:copy"), 0)
	contains(t, r.Stderr, "./out -> /etc/passwd")
	if got := want(t, other.sh("cd ~/copy && cat one sub/two inside && ls"), 0).Stdout; got != "one\ntwo\none\ninside\none\nsub\n" {
		t.Errorf("%q", got)
	}

	dst := filepath.Join(t.TempDir(), "dst")
	contains(t, want(t, e.Belljar("apply", "site:v1", dst), 2).Stderr, "--yes")
	if _, err := os.Stat(dst); !os.IsNotExist(err) {
		t.Errorf("something is there: %v", err)
	}
	if out := want(t, e.Belljar("apply", "site:v1", dst, "--yes"), 0).Stdout; !strings.Contains(out, "A "+dst) {
		t.Errorf("%q", out)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "sub/two")); string(b) != "two\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dst, "out")); !os.IsNotExist(err) {
		t.Errorf("a link out: %v", err)
	}
	contains(t, want(t, e.Belljar("apply", "site:v1", dst, "--yes"), 0).Stderr, "there already")
	for name, body := range map[string]string{"one": "mine\n", "own": "stays\n"} {
		if err := os.WriteFile(filepath.Join(dst, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out := want(t, e.Belljar("apply", "site:v1", dst, "--yes"), 0).Stdout; out != "C "+filepath.Join(dst, "one")+"\n" {
		t.Errorf("%q", out)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "own")); string(b) != "stays\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	for _, args := range [][]string{
		{"create", "--snapshot", "site:v1"}, {"snapshot", "create", "work", "no", "--dir", "/etc/passwd"},
		{"snapshot", "create", "work", "no", "--dir", "/none"}, {"apply", "none", dst, "--yes"},
	} {
		want(t, e.Belljar(args...), 125)
	}
	want(t, e.Belljar("snapshot", "create", "work", "no", "--dir", "relative"), 2)
}

// TestApplyProtected: names that the host executes are refused until they are
// asked for.
func TestApplyProtected(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	want(t, b.sh("mkdir -p ~/site/.git/hooks && cd ~/site && echo evil >.git/hooks/pre-commit && echo fine >fine"), 0)
	want(t, e.Belljar("snapshot", "create", b.name, "site", "--dir", "/home/user/site"), 0)
	dst := t.TempDir()
	contains(t, want(t, e.Belljar("apply", "site", dst, "--yes"), 125).Stderr, "pre-commit", "--allow-protected")
	if names, err := os.ReadDir(dst); len(names) != 0 || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	want(t, e.Belljar("apply", "site", dst, "--yes", "--allow-protected"), 0)
	if _, err := os.Stat(filepath.Join(dst, ".git/hooks/pre-commit")); err != nil {
		t.Error(err)
	}
}

// TestApplyHostile: archives that no honest guest makes, in snapshots of another
// installation, write nothing beside their destination, on the host or inside.
func TestApplyHostile(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	outside := filepath.Join(t.TempDir(), "outside")
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}
	}
	dir := tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}
	link := func(name string, typ byte, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: typ, Linkname: to}
	}
	for name, c := range map[string]struct {
		list []tar.Header
		left string // what it leaves at the destination, "" for nothing at all
	}{
		"dotdot":             {[]tar.Header{dir, file("d/../../evil")}, ""},
		"absolute":           {[]tar.Header{dir, file(outside)}, ""},
		"link out":           {[]tar.Header{dir, link("d/l", tar.TypeSymlink, filepath.Dir(outside)), file("d/f")}, "f"},
		"through a link":     {[]tar.Header{dir, link("d/l", tar.TypeSymlink, filepath.Dir(outside)), file("d/l/outside")}, ""},
		"hard link out":      {[]tar.Header{dir, link("d/h", tar.TypeLink, "../../etc/passwd")}, ""},
		"hard link absolute": {[]tar.Header{dir, link("d/h", tar.TypeLink, "/etc/passwd")}, ""},
		"device":             {[]tar.Header{dir, {Name: "d/n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "d/p", Typeflag: tar.TypeFifo}, file("d/f")}, "f"},
		"set-user-ID":        {[]tar.Header{dir, {Name: "d/s", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}}, "s"},
		"twice":              {[]tar.Header{dir, link("d/x", tar.TypeSymlink, "y"), file("d/x"), file("d/x")}, "x"},
		"two trees":          {[]tar.Header{dir, file("e")}, "e"},
		"no directory":       {[]tar.Header{file("d")}, ""},
		"a huge header":      {[]tar.Header{dir, {Name: "d/f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"BELLJAR.x": strings.Repeat("x", 1_000_000)}}}, "f"},
		"a huge name":        {[]tar.Header{dir, file("d/" + strings.Repeat("n", 1_000_000))}, ""},
		"nothing":            {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var raw bytes.Buffer
			w := tar.NewWriter(&raw)
			for _, h := range c.list {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				w.Write([]byte("evil")[:h.Size])
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			cmd := e.Command("snapshot", "load", "-")
			cmd.Stdin = bytes.NewReader(testenv.ForeignSnapshot(t, sandbox.KindDirectory, map[string][]byte{"archive.tar": raw.Bytes()}))
			id := strings.TrimSpace(want(t, e.Finish(cmd), 0).Stdout)
			top := t.TempDir()
			r := e.Belljar("apply", id, filepath.Join(top, "dst"), "--yes")
			if (r.Code == 0) != (c.left != "") {
				t.Errorf("on the host: exit code %d, %s", r.Code, clip(r.Stderr))
			}
			onHost(t, top, c.left)
			want(t, b.sh("rm -rf ~/dst"), 0)
			e.Belljar("apply", id, "work:dst")
			if out := want(t, b.sh("ls -d ~/evil /evil "+outside+" 2>/dev/null; find ~/dst ! -type d ! -type f ! -type l -o -perm /6000 2>/dev/null; true"), 0).Stdout; out != "" {
				t.Errorf("inside: %q", out)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Error("something was written beside the destination")
			}
		})
	}
}

// onHost checks that top has the one file of a destination, or nothing.
func onHost(t *testing.T, top, left string) {
	t.Helper()
	var found []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil && (!fi.Mode().IsRegular() || fi.Mode()&^0o777 != 0) {
			t.Errorf("%s is %v", path, fi.Mode())
		}
		found = append(found, strings.TrimPrefix(path, top+"/"))
		return err
	})
	wanted := ""
	if left != "" {
		wanted = "dst/" + left
	}
	if err != nil || strings.Join(found, " ") != wanted {
		t.Errorf("on the host: %q, %v, want %q", found, err, wanted)
	}
}

// TestForeignFiles: files that another installation has saved are given to a
// sandbox of ours, and what is no image of files to nobody.
func TestForeignFiles(t *testing.T) {
	e := setup(t)
	load := func(files map[string][]byte) string {
		cmd := e.Command("snapshot", "load", "-")
		cmd.Stdin = bytes.NewReader(testenv.ForeignSnapshot(t, sandbox.KindFiles, files))
		return strings.TrimSpace(want(t, e.Finish(cmd), 0).Stdout)
	}
	garbage := map[string][]byte{}
	for _, name := range []string{"files", "tree", "pages-meta", "pages"} {
		garbage[name] = []byte("this is no image")
	}
	for _, files := range []map[string][]byte{garbage, {"tree": []byte("x")}} {
		if r := e.Belljar("create", "--snapshot", load(files)); r.Code != 125 || len(r.Stderr) > 8<<10 {
			t.Errorf("exit code %d, %s", r.Code, clip(r.Stderr))
		}
	}
	if left := held(e, ""); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
