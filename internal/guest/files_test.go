package guest_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func (b *box) put(path, text string) wire.Entry {
	b.t.Helper()
	e, err := b.Put(b.t.Context(), path, strings.NewReader(text), guestclient.PutOptions{})
	if err != nil {
		b.t.Fatalf("put %q: %v", path, err)
	}
	return e
}

func (b *box) get(path, byteRange string) (string, error) {
	b.t.Helper()
	f, err := b.Get(b.t.Context(), path, "", byteRange)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		b.t.Fatalf("get %q: %v", path, err)
	}
	return string(text), nil
}

func wantKind(t *testing.T, what string, err error, kinds ...sandbox.Kind) {
	t.Helper()
	for _, k := range kinds {
		if sandbox.KindOf(err) == k {
			return
		}
	}
	t.Errorf("%s: got %v (%s), want %v", what, err, sandbox.KindOf(err), kinds)
}

func TestPutAndGet(t *testing.T) {
	b := newBox(t, options{})
	paths := []struct{ path, file string }{
		{"plain.txt", "plain.txt"},
		{"~/tilde.txt", "tilde.txt"},
		{b.home + "/a/../b/./c//d.txt", "b/c/d.txt"},
		{"deep/er/and/deeper", "deep/er/and/deeper"},
		{"caf\u00e9.txt", "caf\u00e9.txt"},
		{"cafe\u0301.txt", "cafe\u0301.txt"},
		{"new\nline \x1b[2J \u202e '; rm -rf $(id)", "new\nline \x1b[2J \u202e '; rm -rf $(id)"},
		{"-rf", "-rf"},
		{"CON. ", "CON. "},
		{"..%252f..%252fx", "..%252f..%252fx"},
		{`..\..\x`, `..\..\x`},
		{strings.Repeat("n", 255), strings.Repeat("n", 255)},
		{"not \xff\xfe utf-8", "not \xff\xfe utf-8"},
		{"empty", "empty"},
	}
	for _, tt := range paths {
		text := "text of " + tt.path
		if tt.path == "empty" {
			text = ""
		}
		e := b.put(tt.path, text)
		got, err := os.ReadFile(filepath.Join(b.home, tt.file))
		if err != nil || string(got) != text {
			t.Errorf("%q: got %q, %v", tt.path, got, err)
			continue
		}
		if e.Type != wire.TypeFile || e.Mode != 0o644 || e.Size != int64(len(text)) || os.Geteuid() == 0 && (e.UID != 1000 || e.Owner != "user") {
			t.Errorf("%q: got entry %+v", tt.path, e)
		}
		if back, err := b.get(tt.path, ""); err != nil || back != text {
			t.Errorf("%q: read back %q, %v", tt.path, back, err)
		}
		if raw := string(e.RawPath); raw != "" && raw != filepath.Join(b.home, tt.file) || raw == "" && e.Path != filepath.Join(b.home, tt.file) {
			t.Errorf("%q: got path %q %q", tt.path, e.Path, raw)
		}
	}
	st, err := os.Stat(filepath.Join(b.home, "deep/er"))
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("parents: %v, %v", st, err)
	}
}

func TestBadPaths(t *testing.T) {
	b := newBox(t, options{})
	dir := b.home
	os.Mkdir(dir+"/dir", 0o755)
	unix.Mkfifo(dir+"/fifo", 0o666)
	fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	defer unix.Close(fd)
	unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/socket"})
	os.Symlink("loop", dir+"/loop")
	os.Symlink("/dev/null", dir+"/device")
	tests := []struct {
		path  string
		read  []sandbox.Kind
		write []sandbox.Kind
	}{
		{"", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"a\x00b", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"~other/x", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{strings.Repeat("x", 256), kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{strings.Repeat("x/", 4096), kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{strings.Repeat("x/", 1<<19), kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"none", kinds(sandbox.NotFound), nil},
		{"dir", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"dir/", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"/", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"fifo", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"socket", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"loop", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
		{"device", kinds(sandbox.Invalid), kinds(sandbox.Denied)},
		{"/dev/null", kinds(sandbox.Invalid), kinds(sandbox.Denied)},
		{"/proc/sys/kernel/belljar", kinds(sandbox.NotFound), kinds(sandbox.Denied)},
		{"/sys/belljar", kinds(sandbox.NotFound), kinds(sandbox.Denied)},
		{"/proc/self/root/etc/hostname", kinds(sandbox.Invalid, sandbox.Denied, sandbox.NotFound), kinds(sandbox.Invalid, sandbox.Denied)},
		{"/proc/self/fd/3", kinds(sandbox.Invalid, sandbox.Denied, sandbox.NotFound), kinds(sandbox.Invalid, sandbox.Denied)},
		{"fifo/below", kinds(sandbox.Invalid), kinds(sandbox.Invalid)},
	}
	for _, tt := range tests {
		begin := time.Now()
		_, err := b.get(tt.path, "")
		wantKind(t, fmt.Sprintf("read %.40q", tt.path), err, tt.read...)
		if tt.write != nil {
			_, err = b.Put(t.Context(), tt.path, strings.NewReader("x"), guestclient.PutOptions{})
			wantKind(t, fmt.Sprintf("write %.40q", tt.path), err, tt.write...)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%.40q took %v", tt.path, took)
		}
	}
	_, err := b.Get(t.Context(), "x", "nobody-here", "")
	wantKind(t, "unknown user", err, sandbox.Invalid)
}

func kinds(k ...sandbox.Kind) []sandbox.Kind { return k }

func TestRange(t *testing.T) {
	b := newBox(t, options{})
	b.put("f", "0123456789")
	tests := []struct{ header, want string }{
		{"bytes=0-3", "0123"}, {"bytes=8-", "89"}, {"bytes=-2", "89"}, {"bytes=5-100", "56789"},
		{"bytes=0-1,3-4", "0123456789"}, {"lines=1-2", "0123456789"}, {"bytes=3-1", "0123456789"}, {"bytes=-100", "0123456789"},
	}
	for _, tt := range tests {
		if got, err := b.get("f", tt.header); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", tt.header, got, err, tt.want)
		}
	}
	_, err := b.get("f", "bytes=10-")
	wantKind(t, "outside", err, sandbox.Invalid)
}

func TestOverwrite(t *testing.T) {
	b := newBox(t, options{})
	file := filepath.Join(b.home, "f")
	b.put("f", "old")
	os.Chmod(file, 0o750)
	os.Symlink("f", filepath.Join(b.home, "link"))
	os.Symlink("made/later", filepath.Join(b.home, "dangling"))
	if e := b.put("link", "new"); e.Mode != 0o750 {
		t.Errorf("got mode %o, want that of the old file", e.Mode)
	}
	if st, err := os.Lstat(filepath.Join(b.home, "link")); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", st, err)
	}
	b.put("dangling", "x")
	if got, err := os.ReadFile(filepath.Join(b.home, "made/later")); err != nil || string(got) != "x" {
		t.Errorf("through a dangling link: %q, %v", got, err)
	}
	e, err := b.Put(t.Context(), "f", strings.NewReader("x"), guestclient.PutOptions{Mode: 0o600})
	if err != nil || e.Mode != 0o600 {
		t.Errorf("got %+v, %v", e, err)
	}
	// An upload that breaks off leaves the old content and nothing else.
	before, _ := os.ReadDir(b.home)
	_, err = b.Put(t.Context(), "f", io.MultiReader(strings.NewReader("half"), broken{}), guestclient.PutOptions{})
	if err == nil {
		t.Error("a broken upload was taken")
	}
	waitFor(t, "the temporary file to go", func() bool {
		after, _ := os.ReadDir(b.home)
		return len(after) == len(before)
	})
	if got, _ := os.ReadFile(file); string(got) != "x" {
		t.Errorf("after a broken upload: %q", got)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("broken on purpose") }

func TestMeta(t *testing.T) {
	b := newBox(t, options{})
	probe := write(t, filepath.Join(b.home, "probe"), "")
	if err := unix.Setxattr(probe, "user.x", nil, 0); err != nil {
		t.Skipf("probe: setxattr user.x in the temporary directory: %v", err)
	}
	want := map[string]string{"k": "v", "empty": "", "long": strings.Repeat("y", 1000)}
	e, err := b.Put(t.Context(), "f", strings.NewReader(""), guestclient.PutOptions{Meta: want})
	if err != nil || fmt.Sprint(e.Meta) != fmt.Sprint(want) {
		t.Errorf("got %v, %v", e.Meta, err)
	}
	if e := b.put("f", ""); len(e.Meta) != 0 {
		t.Errorf("put again: metadata stayed: %v", e.Meta)
	}
	_, err = b.Put(t.Context(), "f", strings.NewReader(""), guestclient.PutOptions{Meta: map[string]string{"k": strings.Repeat("z", 5000)}})
	wantKind(t, "too long", err, sandbox.Invalid)
}

func TestPermissions(t *testing.T) {
	needRoot(t)
	b := newBox(t, options{})
	top := filepath.Dir(b.home)
	secret := write(t, filepath.Join(top, "secret"), "root's")
	os.Chmod(secret, 0o600)
	_, err := b.get(secret, "")
	wantKind(t, "read another's file", err, sandbox.Denied)
	_, err = b.Put(t.Context(), filepath.Join(top, "new"), strings.NewReader("x"), guestclient.PutOptions{})
	wantKind(t, "write where root only may", err, sandbox.Denied)
	_, err = b.Put(t.Context(), secret, strings.NewReader("x"), guestclient.PutOptions{})
	wantKind(t, "overwrite another's file", err, sandbox.Denied)
	wantKind(t, "remove another's file", b.Remove(t.Context(), secret, ""), sandbox.Denied)
	_, err = b.Mkdir(t.Context(), filepath.Join(top, "d"), "")
	wantKind(t, "mkdir", err, sandbox.Denied)
	_, err = b.Dir(t.Context(), filepath.Join(top, "root"), "", 1)
	wantKind(t, "list", err, sandbox.Denied)
	// In the user's own directory a rename would get around the file's mode.
	owned := write(t, filepath.Join(b.home, "readonly"), "root's")
	_, err = b.Put(t.Context(), "readonly", strings.NewReader("x"), guestclient.PutOptions{})
	wantKind(t, "replace a file that may not be written", err, sandbox.Denied)
	// A file that may be written in a directory that may not.
	open := write(t, filepath.Join(top, "open"), "old old old")
	os.Chmod(open, 0o666)
	if e := b.put(open, "new"); e.UID != 0 || e.Size != 3 {
		t.Errorf("in place: got %+v", e)
	}
	if got, err := b.Get(t.Context(), owned, "root", ""); err != nil {
		t.Errorf("root: %v", err)
	} else {
		got.Close()
	}
	e, err := b.Put(t.Context(), filepath.Join(b.home, "readonly"), strings.NewReader("x"), guestclient.PutOptions{User: "root"})
	if err != nil || e.UID != 0 {
		t.Errorf("root: %+v, %v", e, err)
	}
	mine := b.put("mine", "x")
	e, err = b.Put(t.Context(), mine.Path, strings.NewReader("y"), guestclient.PutOptions{User: "root"})
	if err != nil || e.UID != 1000 || e.GID != 1000 {
		t.Errorf("root overwrites the user's file, which stays the user's: %+v, %v", e, err)
	}
}

func TestTree(t *testing.T) {
	b := newBox(t, options{})
	for _, p := range []string{"d/b/2", "d/a/1", "d/a/0", "d/c"} {
		b.put(p, p)
	}
	os.Symlink("/etc/passwd", filepath.Join(b.home, "d/link"))
	os.WriteFile(filepath.Join(b.home, "d/\xff"), nil, 0o644)
	list := func(depth int) string {
		t.Helper()
		es, err := b.Dir(t.Context(), "d", "", depth)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range es {
			p := e.Path
			if e.RawPath != nil {
				p = string(e.RawPath)
			}
			out = append(out, strings.TrimPrefix(p, b.home+"/d/")+":"+string(e.Type[0])+e.Target)
		}
		return strings.Join(out, " ")
	}
	if got, want := list(0), "a:d b:d c:f link:s/etc/passwd \xff:f"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := list(2), "a:d a/0:f a/1:f b:d b/2:f c:f link:s/etc/passwd \xff:f"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err := b.Dir(t.Context(), "d/c", "", 1)
	wantKind(t, "list a file", err, sandbox.Invalid)
	_, err = b.Mkdir(t.Context(), "d/a", "")
	wantKind(t, "mkdir again", err, sandbox.AlreadyExists)
	_, err = b.Mkdir(t.Context(), "d/c", "")
	wantKind(t, "mkdir over a file", err, sandbox.Invalid)
	if e, err := b.Mkdir(t.Context(), "n/e/w", ""); err != nil || e.Type != wire.TypeDir {
		t.Errorf("got %+v, %v", e, err)
	}
	if e, err := b.Move(t.Context(), "d/a", "x/y/z", ""); err != nil || e.Path != b.home+"/x/y/z" {
		t.Errorf("got %+v, %v", e, err)
	}
	_, err = b.Move(t.Context(), "d/a", "q", "")
	wantKind(t, "move what is gone", err, sandbox.NotFound)
	_, err = b.Move(t.Context(), "x", "x/y/below", "")
	wantKind(t, "move into itself", err, sandbox.Invalid)
	_, err = b.Stat(t.Context(), "d/a", "")
	wantKind(t, "stat what is gone", err, sandbox.NotFound)
	outside := filepath.Join(t.TempDir(), "outside")
	os.MkdirAll(outside+"/kept", 0o777)
	os.Symlink(outside, filepath.Join(b.home, "d/out"))
	if err := b.Remove(t.Context(), "d", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Errorf("removing followed a link: %v", err)
	}
	wantKind(t, "remove again", b.Remove(t.Context(), "d", ""), sandbox.NotFound)
	wantKind(t, "remove the root", b.Remove(t.Context(), "/", ""), sandbox.Denied)
}

func TestTenThousandLinks(t *testing.T) {
	b := newBox(t, options{})
	dir := filepath.Join(b.home, "links")
	os.Mkdir(dir, 0o755)
	for i := range 10_000 {
		os.Symlink("/", fmt.Sprintf("%s/%05d", dir, i))
	}
	begin := time.Now()
	es, err := b.Dir(t.Context(), dir, "root", 5)
	if os.Geteuid() != 0 {
		es, err = b.Dir(t.Context(), dir, "", 5)
	}
	if err != nil || len(es) != 10_000 {
		t.Fatalf("got %d entries, %v", len(es), err)
	}
	if took := time.Since(begin); took > 2*slowdown*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestSparse reads a terabyte for a while and looks at the guest's memory.
func TestSparse(t *testing.T) {
	b := newBox(t, options{})
	f, err := os.Create(filepath.Join(b.home, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		t.Skipf("probe: a file of 1 TiB: %v", err)
	}
	got, err := b.Get(t.Context(), "big", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.Size != 1<<40 {
		t.Errorf("got size %d", got.Size)
	}
	before := rss(t, b.cmd.Process.Pid)
	if _, err := io.CopyN(io.Discard, got, 512<<20); err != nil {
		t.Fatal(err)
	}
	if grown := rss(t, b.cmd.Process.Pid) - before; grown > 32<<20 {
		t.Errorf("the guest grew by %d MiB", grown>>20)
	}
	tail, err := b.get("big", "bytes=-3")
	if err != nil || tail != "\x00\x00\x00" {
		t.Errorf("got %q, %v", tail, err)
	}
}

func rss(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var total, resident int64
	fmt.Sscan(string(b), &total, &resident)
	return resident * int64(os.Getpagesize())
}

func TestFileVolume(t *testing.T) {
	b := newBox(t, options{})
	const size = 256 << 20
	sent := sha256.New()
	begin := time.Now()
	e, err := b.Put(t.Context(), "big", io.TeeReader(io.LimitReader(zeros{}, size), sent), guestclient.PutOptions{Size: size})
	if err != nil || e.Size != size {
		t.Fatalf("got %+v, %v", e, err)
	}
	t.Logf("upload %.0f MB/s", size/1e6/time.Since(begin).Seconds())
	begin = time.Now()
	f, err := b.Get(t.Context(), "big", "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := sha256.New()
	if _, err := io.Copy(got, f); err != nil {
		t.Fatal(err)
	}
	t.Logf("download %.0f MB/s", size/1e6/time.Since(begin).Seconds())
	if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Error("the sums differ")
	}
}

// TestQuery sends what the client would not.
func TestQuery(t *testing.T) {
	b := newBox(t, options{})
	b.put("f", "x")
	for _, tt := range []struct {
		query string
		want  int
	}{
		{"path=f", 200}, {"path=f&path=g", 400}, {"path=f;user=root", 400}, {"path=%zz", 400}, {"", 400},
		{"path=" + url.QueryEscape(b.home) + "%2Ff", 200}, {"path=f&user=root&user=user", 400},
	} {
		if got := status(t, b, "GET", "/v1/files?"+tt.query, "1"); got != tt.want {
			t.Errorf("%q: got %d, want %d", tt.query, got, tt.want)
		}
	}
}
