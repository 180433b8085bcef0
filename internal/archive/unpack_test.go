package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body}
}

func dir(name string) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func link(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hard(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func makeTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.body))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_000_000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("header of %q: %v", h.Name, err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// jail is a directory to unpack into with canaries around it.
type jail struct {
	outer, root string
	before      string
}

func newJail(t testing.TB) *jail {
	t.Helper()
	outer := t.TempDir()
	j := &jail{outer: outer, root: filepath.Join(outer, "a", "root")}
	for _, d := range []string{j.root, filepath.Join(outer, "host")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"canary", "a/canary", "host/canary"} {
		if err := os.WriteFile(filepath.Join(outer, f), []byte("canary"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	j.before = j.state(t)
	return j
}

// state lists everything outside the root with type, mode and content.
func (j *jail) state(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(j.outer, func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if p == j.root {
			return filepath.SkipDir
		}
		content := ""
		if info.Mode().IsRegular() {
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = string(raw)
		}
		b.WriteString(p + " " + info.Mode().String() + " " + content + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (j *jail) check(t testing.TB) {
	t.Helper()
	if got := j.state(t); got != j.before {
		t.Fatalf("something outside changed:\n%s\nwas\n%s", got, j.before)
	}
}

func (j *jail) unpack(t testing.TB, raw []byte, o Options) (Summary, error) {
	t.Helper()
	return Unpack(t.Context(), openDir(t, j.root), bytes.NewReader(raw), o)
}

func wantError(t testing.TB, err error, kind sandbox.Kind, parts ...string) {
	t.Helper()
	if sandbox.KindOf(err) != kind {
		t.Fatalf("got %v (%s), want kind %s", err, sandbox.KindOf(err), kind)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got %q, want it to name %q", err, p)
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	device := entry{tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3, Mode: 0o666}, ""}
	long := strings.Repeat("n", 256)
	tests := []struct {
		name    string
		entries []entry
		want    []string
	}{
		{"dotdot", []entry{file("../evil", "x")}, []string{"../evil", "'..'"}},
		{"dotdot inside", []entry{file("a/../../evil", "x")}, []string{"a/../../evil"}},
		{"dotdot harmless", []entry{file("a/../b", "x")}, []string{"a/../b"}},
		{"dotdot directory", []entry{dir("../evil/")}, []string{"../evil/"}},
		{"absolute", []entry{file("/etc/evil", "x")}, []string{"/etc/evil", "absolute"}},
		{"long component", []entry{file("d/"+long, "x")}, []string{"255"}},
		{"long name", []entry{file(strings.Repeat("d/", 2048)+"f", "x")}, []string{"4096"}},
		{"link absolute", []entry{link("l", "/etc/passwd")}, []string{`"l"`, "absolute"}},
		{"link out", []entry{dir("d"), link("d/l", "../../host/canary")}, []string{"d/l", "outside"}},
		{"link out through link", []entry{dir("d/e"), link("up", "d/e/../../.."), file("f", "")}, []string{"up"}},
		{"write through link", []entry{link("l", "."), file("l/evil", "x")}, []string{"l/evil", "link"}},
		{"write through absolute link", []entry{link("l", "/tmp"), file("l/evil", "x")}, []string{`"l"`}},
		{"directory over link", []entry{dir("d"), link("l", "d"), dir("l")}, []string{`"l"`}},
		{"below a file", []entry{file("f", "x"), file("f/g", "x")}, []string{"f/g"}},
		{"file over directory", []entry{file("d/f", "x"), file("d", "x")}, []string{`"d"`}},
		{"hard link out", []entry{hard("h", "../../etc/passwd")}, []string{`"h"`, "../../etc/passwd"}},
		{"hard link absolute", []entry{hard("h", "/etc/passwd")}, []string{`"h"`}},
		{"hard link to nothing", []entry{hard("h", "f")}, []string{`"h"`}},
		{"hard link to itself", []entry{file("h", "x"), hard("h", "h")}, []string{`"h"`}},
		{"hard link to directory", []entry{dir("d"), hard("h", "d")}, []string{`"h"`}},
		{"hard link to link", []entry{link("l", "f"), hard("h", "l")}, []string{`"h"`}},
		{"hard link through link", []entry{file("d/f", "x"), link("l", "d"), hard("h", "l/f")}, []string{`"h"`}},
		{"device", []entry{device}, []string{"dev/null", "device"}},
		{"root is a file", []entry{file(".", "x")}, []string{"itself"}},
		{"unknown kind", []entry{{tar.Header{Typeflag: 'Z', Name: "z"}, ""}}, []string{`"z"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJail(t)
			_, err := j.unpack(t, makeTar(t, tt.entries...), Options{})
			wantError(t, err, sandbox.Invalid, tt.want...)
			j.check(t)
		})
	}
}

// TestUnpackRefusesNUL needs a header that the standard library does not write.
func TestUnpackRefusesNUL(t *testing.T) {
	if _, err := splitName("a\x00b", 8); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v, want invalid", err)
	}
	if _, err := splitName("", 8); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v, want invalid", err)
	}
}

func TestUnpackKeeps(t *testing.T) {
	j := newJail(t)
	odd := "new\nline \x1b[2J \u202e $(id) -"
	bytesName := "latin\xff\xfe"
	name255 := strings.Repeat("é", 127) + "x"
	sum, err := j.unpack(t, makeTar(t,
		dir("./"), dir("./d"), file("./d/f", "one"), file("./d/f", "two"), file("./made/on/the/way", "w"),
		link("./d/l", "../d/f"), hard("./h", "d/f"), file(odd, "odd"), file(bytesName, "raw"), file(name255, "long"),
		file("-rf", "dash"), file("cafe\u0301", "nfd"), file("caf\u00e9", "nfc"), link("./loop", "loop"),
	), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !sum.Root || sum.Skipped != 0 {
		t.Errorf("got %+v, want a root entry and nothing skipped", sum)
	}
	want := map[string]string{
		"d/f": "two", "d/l": "two", "h": "two", "made/on/the/way": "w", odd: "odd", bytesName: "raw", name255: "long",
		"-rf": "dash", "cafe\u0301": "nfd", "caf\u00e9": "nfc",
	}
	for name, body := range want {
		got, err := os.ReadFile(filepath.Join(j.root, name))
		if err != nil || string(got) != body {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, body)
		}
	}
	a, b := stat(t, filepath.Join(j.root, "h")), stat(t, filepath.Join(j.root, "d/f"))
	if a.Ino != b.Ino {
		t.Error("the hard link is not one")
	}
	if a.Mtim.Sec != 1_000_000 {
		t.Errorf("got mtime %d, want 1000000", a.Mtim.Sec)
	}
	if got := stat(t, filepath.Join(j.root, "d")).Mtim.Sec; got != 1_000_000 {
		t.Errorf("got mtime %d of a directory, want 1000000", got)
	}
	j.check(t)
}

func stat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestUnpackLinkRules(t *testing.T) {
	raw := makeTar(t, dir("etc"), link("etc/mtab", "/proc/mounts"), link("etc/out", "../../x"), file("f", "x"))
	t.Run("skip", func(t *testing.T) {
		j := newJail(t)
		sum, err := j.unpack(t, raw, Options{Links: LinksSkip})
		if err != nil || sum.Skipped != 2 || sum.Skips[0].Name != "etc/mtab" {
			t.Fatalf("got %+v, %v, want both links skipped", sum, err)
		}
	})
	t.Run("behind a skipped link", func(t *testing.T) {
		j := newJail(t)
		_, err := j.unpack(t, makeTar(t, link("d/l", "/tmp"), file("d/l/f", "evil")), Options{Links: LinksSkip})
		wantError(t, err, sandbox.Invalid, "d/l/f")
	})
	t.Run("rooted", func(t *testing.T) {
		j := newJail(t)
		_, err := j.unpack(t, raw, Options{Links: LinksRooted})
		wantError(t, err, sandbox.Invalid, "etc/out")
		if got, err := os.Readlink(filepath.Join(j.root, "etc/mtab")); got != "/proc/mounts" {
			t.Errorf("got %q, %v", got, err)
		}
		j.check(t)
	})
}

func TestUnpackSanitises(t *testing.T) {
	j := newJail(t)
	suid := entry{tar.Header{
		Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755, Uid: 0, Gid: 0, ModTime: time.Unix(1e18, 0), Format: tar.FormatPAX,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00"},
	}, "#!"}
	sticky := entry{tar.Header{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o7777}, ""}
	block := entry{tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8, Mode: 0o666}, ""}
	fifo := entry{tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o666}, ""}
	sum, err := j.unpack(t, makeTar(t, suid, sticky, block, fifo), Options{Devices: DevicesSkip, Umask: 0o022})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Skipped != 3 {
		t.Errorf("got %+v, want set-user-ID, device and FIFO reported", sum.Skips)
	}
	st := stat(t, filepath.Join(j.root, "suid"))
	if st.Mode != unix.S_IFREG|0o755 || int(st.Uid) != os.Geteuid() {
		t.Errorf("got mode %o uid %d, want a plain 755 of the caller's", st.Mode, st.Uid)
	}
	if d := time.Since(time.Unix(st.Mtim.Sec, 0)); d < -time.Minute || d > time.Hour {
		t.Errorf("got mtime %d, want about now", st.Mtim.Sec)
	}
	if n, err := unix.Lgetxattr(filepath.Join(j.root, "suid"), "security.capability", nil); err == nil {
		t.Errorf("a file capability of %d bytes came through", n)
	}
	if got := stat(t, filepath.Join(j.root, "tmp")).Mode; got != unix.S_IFDIR|0o755 {
		t.Errorf("got mode %o of the directory, want 755", got)
	}
	for _, name := range []string{"sda", "pipe"} {
		if _, err := os.Lstat(filepath.Join(j.root, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made", name)
		}
	}
}

func TestUnpackOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe: not root, owners cannot be set")
	}
	j := newJail(t)
	own := func(name string, mode int64, uid, gid int) entry {
		return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Uid: uid, Gid: gid}, "x"}
	}
	_, err := j.unpack(t, makeTar(t, own("sudo", 0o4755, 0, 0), own("user-suid", 0o4755, 1000, 0), own("file", 0o640, 1000, 42),
		own("huge", 0o644, 1<<20, 0), entry{tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "file", Uid: 7, Gid: 8}, ""},
	), Options{Owners: true, Setuid: true, Sticky: true})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		mode, uid, gid uint32
	}{
		{"sudo", unix.S_IFREG | 0o4755, 0, 0},
		{"user-suid", unix.S_IFREG | 0o755, 1000, 0},
		{"file", unix.S_IFREG | 0o640, 1000, 42},
		{"huge", unix.S_IFREG | 0o644, nobody, 0},
		{"l", unix.S_IFLNK | 0o777, 7, 8},
	}
	for _, tt := range tests {
		st := stat(t, filepath.Join(j.root, tt.name))
		if st.Mode != tt.mode || st.Uid != tt.uid || st.Gid != tt.gid {
			t.Errorf("%s: got mode %o owner %d:%d, want %o %d:%d", tt.name, st.Mode, st.Uid, st.Gid, tt.mode, tt.uid, tt.gid)
		}
	}
}

// TestUnpackClosedDirectories checks that directories which forbid writing are
// filled first and closed afterwards, whatever the order of entries.
func TestUnpackClosedDirectories(t *testing.T) {
	closed := func(name string) entry {
		return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o500}, ""}
	}
	j := newJail(t)
	_, err := j.unpack(t, makeTar(t, closed("d"), closed("d/e"), file("d/e/f", "x"), file("late/f", "x"), closed("late")), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"d", "d/e", "late"} {
		if got := stat(t, filepath.Join(j.root, d)).Mode & 0o777; got != 0o500 {
			t.Errorf("%s: got mode %o, want 500", d, got)
		}
	}
	if err := Remove(openDir(t, j.outer), "a"); err != nil {
		t.Errorf("removing closed directories: %v", err)
	}
}

func TestUnpackCompressed(t *testing.T) {
	raw := makeTar(t, file("f", "content"))
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	g.Write(raw)
	g.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(raw)
	z.Close()
	flipped := bytes.Clone(gz.Bytes())
	flipped[len(flipped)-6] ^= 1 // in the checksum
	tests := []struct {
		name string
		raw  []byte
		kind sandbox.Kind // "": works
	}{
		{"plain", raw, ""},
		{"gzip", gz.Bytes(), ""},
		{"zstd", zs.Bytes(), ""},
		{"gzip with a wrong checksum", flipped, sandbox.Invalid},
		{"gzip cut short", gz.Bytes()[:gz.Len()-9], sandbox.Invalid},
		{"zstd cut short", zs.Bytes()[:zs.Len()-9], sandbox.Invalid},
		{"plain cut in content", raw[:600], sandbox.Invalid},
		{"plain without an end", raw[:1024], sandbox.Invalid},
		{"empty", nil, sandbox.Invalid},
		{"text", []byte(strings.Repeat("no archive at all\n", 100)), sandbox.Invalid},
		{"short text", []byte("x"), sandbox.Invalid},
		{"xz", append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, raw...), sandbox.Unsupported},
		{"zip", append([]byte("PK\x03\x04"), raw...), sandbox.Unsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJail(t)
			_, err := j.unpack(t, tt.raw, Options{})
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v, want kind %q", err, tt.kind)
			}
		})
	}
}

func TestUnpackLimits(t *testing.T) {
	deep := strings.Repeat("d/", 20) + "f"
	tests := []struct {
		name    string
		limits  Limits
		kind    sandbox.Kind
		entries []entry
	}{
		{"entries", Limits{Entries: 2}, sandbox.ResourceExhausted, []entry{file("a", ""), file("b", ""), file("c", "")}},
		{"bytes", Limits{Bytes: 10}, sandbox.ResourceExhausted, []entry{file("a", "123456"), file("b", "123456")}},
		{"depth", Limits{Depth: 10}, sandbox.Invalid, []entry{file(deep, "")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJail(t)
			_, err := j.unpack(t, makeTar(t, tt.entries...), Options{Limits: tt.limits})
			wantError(t, err, tt.kind)
		})
	}
}

// endless gives zero bytes for ever behind what it starts with.
type endless struct{ head []byte }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.head)
	e.head = e.head[n:]
	clear(p[n:])
	return len(p), nil
}

func TestUnpackBombs(t *testing.T) {
	t.Run("gzip of zeros", func(t *testing.T) {
		j := newJail(t)
		r, w := io.Pipe()
		go func() {
			g := gzip.NewWriter(w)
			tw := tar.NewWriter(g)
			tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bomb", Size: 8 << 30, Mode: 0o644})
			io.Copy(tw, io.LimitReader(&endless{}, 8<<30))
			w.CloseWithError(errors.Join(tw.Close(), g.Close()))
		}()
		defer r.Close()
		_, err := Unpack(t.Context(), openDir(t, j.root), r, Options{})
		wantError(t, err, sandbox.ResourceExhausted, "bomb", "200 times")
		if st := stat(t, filepath.Join(j.root, "bomb")); st.Blocks > 1024 {
			t.Errorf("zeros took %d blocks", st.Blocks)
		}
	})
	t.Run("endless padding", func(t *testing.T) {
		j := newJail(t)
		_, err := Unpack(t.Context(), openDir(t, j.root), &endless{makeTar(t, file("f", "x"))}, Options{})
		if err == nil {
			t.Fatal("an endless stream was accepted")
		}
	})
	t.Run("endless headers", func(t *testing.T) {
		j := newJail(t)
		raw := makeTar(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "f", Format: tar.FormatPAX,
			PAXRecords: map[string]string{"comment": strings.Repeat("c", 500<<10)}}, ""})
		pax := raw[:bytes.LastIndex(raw, []byte("f\x00\x00"))/512*512]
		r := readerFunc(func() []byte { return pax })
		_, err := Unpack(t.Context(), openDir(t, j.root), r, Options{})
		wantError(t, err, sandbox.ResourceExhausted, "headers")
	})
	t.Run("canceled", func(t *testing.T) {
		j := newJail(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Unpack(ctx, openDir(t, j.root), bytes.NewReader(makeTar(t, file("f", ""))), Options{})
		wantError(t, err, sandbox.Canceled)
	})
}

// readerFunc repeats what f returns.
func readerFunc(f func() []byte) io.Reader { return &repeat{f: f} }

type repeat struct {
	f    func() []byte
	left []byte
}

func (r *repeat) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		r.left = r.f()
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}
