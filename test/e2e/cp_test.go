package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// oddNames are names that a file may have on Linux.
func oddNames() []string {
	return []string{
		"plain", "two words", "-rf", "--", "a\nb", "tab\there", `back\slash`, `quo"te'`, "$(id)", "*", "漢字", "e\u0301", "\u00e9", "😀",
		"\xff\xfe", "caf\xe9", ".hidden", "esc\x1b[31m", "rtl\u202egnp", strings.Repeat("x", 255), strings.Repeat("漢", 85),
	}
}

// tree returns every file beneath dir with its content.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.Type()&os.ModeSymlink != 0:
			to, err := os.Readlink(path)
			out[rel] = "-> " + to
			return err
		case d.IsDir():
			out[rel+"/"] = ""
			return nil
		case !d.Type().IsRegular():
			out[rel] = "special"
			return nil
		}
		b, err := os.ReadFile(path)
		out[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Errorf("%q: %q, %v, want %q", k, clip(g), ok, clip(v))
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%q is too many", k)
		}
	}
}

// TestCpNames: every name that a file may have comes through both ways, as
// part of a tree and by itself, and from sandbox to sandbox.
func TestCpNames(t *testing.T) {
	e := setup(t)
	a := create(t, e, "a")
	create(t, e, "b")
	src := filepath.Join(e.Home, "src")
	if err := os.MkdirAll(filepath.Join(src, "sub", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, n := range oddNames() {
		if err := os.WriteFile(filepath.Join(src, n), []byte("content "+itoa(i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../plain", filepath.Join(src, "sub", "link")); err != nil {
		t.Fatal(err)
	}
	want(t, e.Belljar("cp", src, a.name+":"), 0)
	want(t, e.Belljar("cp", "a:src", "b:copy"), 0)
	for ref, back := range map[string]string{"a:src": "back-a", "b:copy": "back-b"} {
		want(t, e.Belljar("cp", ref, filepath.Join(e.Home, back)), 0)
		sameTree(t, tree(t, filepath.Join(e.Home, back)), tree(t, src))
	}
	for i, n := range oddNames() {
		want(t, e.Belljar("cp", filepath.Join(src, n), "a:/tmp/"+n), 0)
		to := filepath.Join(e.Home, "one")
		want(t, e.Belljar("cp", "a:/tmp/"+n, to), 0)
		if b, err := os.ReadFile(to); err != nil || string(b) != "content "+itoa(i) {
			t.Errorf("%q: %q, %v", n, b, err)
		}
		os.Remove(to)
	}
}

// TestCpSizes: files of all sizes arrive whole.
func TestCpSizes(t *testing.T) {
	e := setup(t)
	create(t, e, "a")
	for _, size := range []int64{0, 1, 511, 512, 18 << 10, 1<<20 + 1, 16 << 20, 96 << 20} {
		from, to := filepath.Join(e.Home, "from"), filepath.Join(e.Home, "to")
		f, err := os.Create(from)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		if _, err := io.Copy(f, io.TeeReader(io.LimitReader(&noise{uint64(size)}, size), h)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		want(t, e.Belljar("cp", from, "a:file"), 0)
		want(t, e.Belljar("cp", "a:file", to), 0)
		b, err := os.ReadFile(to)
		sum := sha256.Sum256(b)
		if err != nil || !bytes.Equal(sum[:], h.Sum(nil)) {
			t.Errorf("%d bytes: %d came back and differ (%v)", size, len(b), err)
		}
	}
}

// TestCpForms: where a copy goes, as with cp -r, in both directions.
func TestCpForms(t *testing.T) {
	e := setup(t)
	b := create(t, e, "a")
	dir := filepath.Join(e.Home, "d")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"d/x", "d/sub/y", "f"} {
		if err := os.WriteFile(filepath.Join(e.Home, f), []byte(f), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	host := func(p string) string { return filepath.Join(e.Home, p) }
	for _, tc := range []struct {
		from, to string
		code     int
		there    string // exists afterwards
	}{
		{host("f"), "a:", 0, "/home/user/f"},
		{host("f"), "a:/tmp", 0, "/tmp/f"},
		{host("f"), "a:/tmp/new", 0, "/tmp/new"},
		{host("f"), "a:/tmp/new", 0, "/tmp/new"},
		{host("f"), "a:/tmp/no/", 125, ""},
		{host("f"), "a:/no/such/dir/f", 125, ""},
		{host("d"), "a:", 0, "/home/user/d/sub/y"},
		{host("d"), "a:renamed", 0, "/home/user/renamed/sub/y"},
		{host("d"), "a:renamed", 0, "/home/user/renamed/d/sub/y"},
		{host("d") + "/.", "a:flat", 0, "/home/user/flat/sub/y"},
		{host("d") + "/.", "a:renamed", 0, "/home/user/renamed/x"},
		{host("d"), "a:f", 125, ""},
		{host("f"), "a:/etc/f", 125, ""},
		{host("nosuch"), "a:", 125, ""},
		{"a:nosuch", host("x"), 125, ""},
		{"a:d", host("back"), 0, ""},
		{"a:d", host("back"), 0, ""},
		{"a:/dev/null", host("x"), 125, ""},
	} {
		r := want(t, e.Belljar("cp", tc.from, tc.to), tc.code)
		if tc.code == 0 && r.Stderr != "" || tc.code != 0 && !strings.HasPrefix(r.Stderr, "belljar: ") {
			t.Errorf("cp %s %s: stderr %q", tc.from, tc.to, r.Stderr)
		}
		if tc.there != "" && b.exec("test", "-e", tc.there).Code != 0 {
			t.Errorf("cp %s %s: %s is not there", tc.from, tc.to, tc.there)
		}
	}
	if got := tree(t, host("back")); got["x"] != "d/x" || got["d/sub/y"] != "d/sub/y" {
		t.Errorf("back: %v", got)
	}
	if r := b.exec("stat", "-c", "%a", "f"); r.Stdout != "640\n" {
		t.Errorf("mode inside: %q", r.Stdout)
	}
	if r := b.exec("sh", "-c", "ls -la ~/renamed | grep -c belljar"); r.Stdout != "0\n" {
		t.Errorf("temporary files are left: %q", r.Stdout)
	}
}

// TestCpStream: - is a tar stream in both directions.
func TestCpStream(t *testing.T) {
	e := setup(t)
	b := create(t, e, "a")
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []*tar.Header{{Name: "t/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "t/f", Typeflag: tar.TypeReg, Mode: 0o600, Size: 2}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "hi")
		}
	}
	w.Close()
	cmd := e.Command("cp", "-", "a:/tmp")
	cmd.Stdin = &in
	want(t, e.Finish(cmd), 0)
	if r := want(t, b.exec("cat", "/tmp/t/f"), 0); r.Stdout != "hi" {
		t.Errorf("%q", r.Stdout)
	}
	r := want(t, e.Belljar("cp", "a:/tmp/t", "-"), 0)
	var names []string
	for tr := tar.NewReader(strings.NewReader(r.Stdout)); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if !slices.Contains(names, "t/f") {
		t.Errorf("names in the stream: %q", names)
	}
}

// TestCpOutIsHostile: what a sandbox sends cannot leave the destination, set
// bits or make special files.
func TestCpOutIsHostile(t *testing.T) {
	e := setup(t)
	b := create(t, e, "a")
	canary := filepath.Join(e.Home, "canary")
	if err := os.WriteFile(canary, []byte("whole"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, b.exec("-u", "root", "--", "sh", "-c", `mkdir /tmp/h && cd /tmp/h && cp /bin/true suid && chmod 6755 suid && mkfifo fifo && ln -s "$0" out && ln -s /etc abs && ln -s ../../../../etc rel && ln -s suid in && mknod null c 1 3; echo x > ok; chmod -R a+rX .`, canary), 0)
	to := filepath.Join(e.Home, "out")
	r := want(t, e.Belljar("cp", "-u", "root", "a:/tmp/h", to), 0)
	contains(t, r.Stderr, "out", "abs", "rel")
	got := tree(t, to)
	for _, n := range []string{"out", "abs", "rel", "fifo", "null"} {
		if v, ok := got[n]; ok {
			t.Errorf("%s came out as %q", n, clip(v))
		}
	}
	if got["ok"] != "x\n" || got["in"] != "-> suid" {
		t.Errorf("honest files: %q, %q", got["ok"], got["in"])
	}
	inspect(t, to, e.UID())

	// A destination that holds a link of the sandbox's making is not followed
	// out of the tree that is written.
	trap := filepath.Join(e.Home, "trap")
	if err := os.MkdirAll(filepath.Join(trap, "h"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(canary, filepath.Join(trap, "h", "ok")); err != nil {
		t.Fatal(err)
	}
	e.Belljar("cp", "-u", "root", "a:/tmp/h", trap)
	if text, err := os.ReadFile(canary); err != nil || string(text) != "whole" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}

// TestCpOddSources: FIFOs, sockets, devices and loops on this machine are
// refused or left out, and nothing hangs.
func TestCpOddSources(t *testing.T) {
	e := setup(t)
	create(t, e, "a")
	dir := filepath.Join(e.Home, "odd")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"fifo", "loop"} {
		r := want(t, e.Belljar("cp", filepath.Join(dir, p), "a:"), 125)
		if !strings.HasPrefix(r.Stderr, "belljar: source ") {
			t.Errorf("%s: %q", p, r.Stderr)
		}
	}
	want(t, e.Belljar("cp", "/dev/zero", "a:"), 125)
	r := want(t, e.Belljar("cp", dir, "a:"), 0)
	contains(t, r.Stderr, "fifo")
}

// TestCpWarns: what comes out of a sandbox and is executed or trusted here, and
// what was left behind, is told by count and first names, escaped.
func TestCpWarns(t *testing.T) {
	e := setup(t)
	b := create(t, e, "a")
	want(t, b.exec("-u", "root", "--", "sh", "-c", `mkdir -p /tmp/p/.git/hooks /tmp/p/sub /tmp/p/.vscode && cd /tmp/p &&
		echo x > .envrc; echo x > .git/hooks/post-checkout; echo x > .git/hooks/a.sample; echo x > .vscode/tasks.json; echo x > sub/.envrc
		printf '[core]\n\tbare = false\n' > .git/config
		mkfifo pipe "$(printf 'esc\033[2Jpipe')"; mknod dev c 1 3
		echo ok > ok; echo secret > hidden; chmod 600 hidden`), 0)
	r := want(t, e.Belljar("cp", "a:/tmp/p", filepath.Join(e.Home, "out")), 0)
	contains(t, r.Stderr, "left out, a FIFO: 2: ", `\x1b[2Jpipe`, "left out, a device: 1: ", "left out, not readable for the user: 1: ", "hidden",
		"4 of these names the host executes or trusts", "out/.envrc", "out/.git/hooks/post-checkout", "out/.vscode/tasks.json", "out/sub/.envrc")
	for _, not := range []string{"a.sample", ".git/config", "\x1b"} {
		if strings.Contains(r.Stderr, not) {
			t.Errorf("it warns of %q: %s", not, r.Stderr)
		}
	}
	// The place counts, not the name inside; and a configuration that names a
	// program does.
	hooks := filepath.Join(e.Home, "repo", ".git", "hooks")
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		t.Fatal(err)
	}
	r = want(t, e.Belljar("cp", "a:/tmp/p/ok", hooks), 0)
	contains(t, r.Stderr, "1 of these names", ".git/hooks/ok")
	want(t, b.exec("-u", "root", "--", "sh", "-c", `printf '[core]\n\tfsmonitor = touch /tmp/pwned\n' > /tmp/p/.git/config`), 0)
	r = want(t, e.Belljar("cp", "a:/tmp/p/.git/config", filepath.Join(e.Home, "repo", ".git", "config")), 0)
	contains(t, r.Stderr, "1 of these names", ".git/config")
	if r := want(t, e.Belljar("cp", "a:/tmp/p/ok", filepath.Join(e.Home, "plain")), 0); r.Stderr != "" {
		t.Errorf("a plain file: %q", r.Stderr)
	}
	// Between sandboxes nothing is executed here, and what was left out is told.
	create(t, e, "b")
	r = want(t, e.Belljar("cp", "a:/tmp/p", "b:/tmp"), 0)
	contains(t, r.Stderr, "left out, a FIFO: 2: ")
	if strings.Contains(r.Stderr, "trusts") {
		t.Errorf("between sandboxes: %s", r.Stderr)
	}
}
