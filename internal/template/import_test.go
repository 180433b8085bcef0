package template

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

func makeTar(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = h.Linkname
			h.Linkname = ""
		}
		h.Size = int64(len(body))
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// file has its content where a link has its target.
func file(name, body string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: body}
}

func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }

func put(t testing.TB, name string, raw []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// leftovers lists what is in the store beside templates and its own files.
func leftovers(t testing.TB, s *Store) []string {
	t.Helper()
	names, err := readNames(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == lockName || n == hostDir })
}

func TestImportArchive(t *testing.T) {
	raw := makeTar(t, dir("./"), dir("./bin"), file("./bin/tool", "#!"), link("./sh", "/bin/tool"),
		tar.Header{Typeflag: tar.TypeReg, Name: "./bin/sudo", Mode: 0o4755}, tar.Header{Typeflag: tar.TypeReg, Name: "./mine", Uid: 7, Gid: 8, Mode: 0o600},
		dir("./etc"), file("./etc/machine-id", "0123456789abcdef"), dir("./etc/sudoers.d"),
		file("./etc/passwd", "ubuntu:x:1000:1000::/home/ubuntu:/bin/sh"), file("./etc/shadow", "root:*:::::::\n"))
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	z.Write(raw)
	z.Close()
	for name, src := range map[string]string{"plain": put(t, "r.tar", raw), "gzip": put(t, "r.tgz", gz.Bytes())} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{})
			d, err := s.Import(t.Context(), "a.b-c_1", src, ImportOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if d.Kind != KindImported || d.Shifted != canChown() || d.Setuid != d.Shifted || !strings.HasPrefix(d.Digest, "sha256:") {
				t.Errorf("got %+v", d)
			}
			root, tpl, err := s.Resolve(t.Context(), "a.b-c_1")
			if err != nil || tpl.Name != "a.b-c_1" || root.Shifted != d.Shifted {
				t.Fatalf("got %+v, %+v, %v", root, tpl, err)
			}
			checkImported(t, root)
			if got := leftovers(t, s); !slices.Equal(got, []string{"a.b-c_1"}) {
				t.Errorf("left: %q", got)
			}
			if info, err := os.Stat(filepath.Dir(root.Path)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the template's directory has mode %v, %v, want 0700", info.Mode(), err)
			}
		})
	}
}

func checkImported(t *testing.T, root driver.Root) {
	t.Helper()
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "var/tmp", "root", "home"} {
		if info, err := os.Lstat(filepath.Join(root.Path, d)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", d, err)
		}
	}
	for name, want := range map[string]string{
		"etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\n",
		"etc/group":      "root:x:0:\nuser:x:1000:\n",
		"etc/shadow":     "user:*:19000:0:99999:7:::\nroot:*:::::::\n",
		"etc/machine-id": "",
	} {
		if b, err := os.ReadFile(filepath.Join(root.Path, name)); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v, want %q", name, b, err, want)
		}
	}
	type want struct{ mode, uid, gid uint32 }
	wants := map[string]want{"bin/sudo": {unix.S_IFREG | 0o755, uint32(os.Geteuid()), uint32(os.Getegid())}}
	if root.Shifted {
		wants = map[string]want{
			"bin/sudo": {unix.S_IFREG | 0o4755, 0, 0}, "mine": {unix.S_IFREG | 0o600, 7, 8},
			"home/user": {unix.S_IFDIR | 0o755, userID, userID}, "etc/sudoers.d/belljar": {unix.S_IFREG | 0o440, 0, 0},
		}
	}
	for name, w := range wants {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root.Path, name), &st); err != nil || st.Mode != w.mode || st.Uid != w.uid || st.Gid != w.gid {
			t.Errorf("%s: got mode %o owner %d:%d, %v, want %o %d:%d", name, st.Mode, st.Uid, st.Gid, err, w.mode, w.uid, w.gid)
		}
	}
	if got, err := User(root, ""); err != nil || got.UID != userID {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestImportDirectory(t *testing.T) {
	src := fakeHost(t, map[string]string{"bin/tool": "#!", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "l": "-> /bin/tool", "empty/": ""})
	if err := unix.Mkfifo(filepath.Join(src, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, Options{})
	d, err := s.Import(t.Context(), "d", src, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	root, _, err := s.Resolve(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"bin/tool", "l", "empty", "proc"} {
		if _, err := os.Lstat(filepath.Join(root.Path, p)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(root.Path, "pipe")); err == nil {
		t.Error("a FIFO was imported")
	}
	if d.SizeBytes == 0 || d.Entries == 0 {
		t.Errorf("got %+v", d)
	}
	again, err := s.Import(t.Context(), "e", src, ImportOptions{})
	if err != nil || again.Digest != d.Digest {
		t.Errorf("the same directory has digests %s and %s, %v", d.Digest, again.Digest, err)
	}
}

// TestImportOfItself imports a directory that the store lies in.
func TestImportOfItself(t *testing.T) {
	src := fakeHost(t, map[string]string{"bin/tool": "#!"})
	s := New(filepath.Join(src, "var/lib/templates"), Options{})
	if _, err := s.Import(t.Context(), "self", src, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	root, _, err := s.Resolve(t.Context(), "self")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(root.Path, "var/lib/templates")); err == nil {
		t.Error("the store was imported into itself")
	}
}

func TestImportRefuses(t *testing.T) {
	closed := fakeHost(t, map[string]string{"bin/tool": "#!", "secret": "x"})
	if err := os.Chmod(filepath.Join(closed, "secret"), 0); err != nil {
		t.Fatal(err)
	}
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	device := tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3}
	tests := []struct {
		name, template, src string
		kind                sandbox.Kind
		want                string
	}{
		{"dotdot", "x", put(t, "t", makeTar(t, file("../evil", "x"))), sandbox.Invalid, "../evil"},
		{"absolute", "x", put(t, "t", makeTar(t, file(canary, "x"))), sandbox.Invalid, canary},
		{"link out", "x", put(t, "t", makeTar(t, link("l", "../../x"))), sandbox.Invalid, `"l"`},
		{"through a link", "x", put(t, "t", makeTar(t, link("l", filepath.Dir(canary)), file("l/canary", "evil"))), sandbox.Invalid, "l/canary"},
		{"hard link out", "x", put(t, "t", makeTar(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../../etc/passwd"})), sandbox.Invalid, `"h"`},
		{"device", "x", put(t, "t", makeTar(t, device)), sandbox.Invalid, "dev/null"},
		{"proc is a link", "x", put(t, "t", makeTar(t, link("proc", "/etc"), file("f", ""))), sandbox.Invalid, "proc"},
		{"dev is a file", "x", put(t, "t", makeTar(t, file("dev", "x"))), sandbox.Invalid, "dev"},
		{"no archive", "x", put(t, "t", []byte(strings.Repeat("text\n", 1000))), sandbox.Invalid, "archive"},
		{"nothing", "x", put(t, "t", nil), sandbox.Invalid, "empty"},
		{"nothing in it", "x", put(t, "t", makeTar(t, dir("./"))), sandbox.Invalid, "nothing"},
		{"cut short", "x", put(t, "t", makeTar(t, file("f", strings.Repeat("x", 4096)))[:2048]), sandbox.Invalid, `"f"`},
		{"xz", "x", put(t, "t", []byte("\xfd7zXZ\x00 and so on")), sandbox.Unsupported, "xz"},
		{"missing", "x", "/nonexistent/file", sandbox.NotFound, "/nonexistent/file"},
		{"source is a device", "x", "/dev/null", sandbox.Invalid, "/dev/null"},
		{"empty directory", "x", t.TempDir(), sandbox.Invalid, "nothing"},
		{"bad name", "../x", put(t, "t", makeTar(t, file("f", ""))), sandbox.Invalid, "../x"},
		{"no name", "", put(t, "t", makeTar(t, file("f", ""))), sandbox.Invalid, "template"},
		{"host", "host", put(t, "t", makeTar(t, file("f", ""))), sandbox.Invalid, "host"},
		{"taken", "taken", put(t, "t", makeTar(t, file("f", ""))), sandbox.AlreadyExists, "taken"},
	}
	if os.Geteuid() != 0 {
		tests = append(tests, tests[0])
		tests[len(tests)-1].name, tests[len(tests)-1].src = "unreadable file", closed
		tests[len(tests)-1].kind, tests[len(tests)-1].want = sandbox.Denied, "secret"
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, Options{})
			if _, err := s.Import(t.Context(), "taken", put(t, "t", makeTar(t, file("f", ""))), ImportOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := s.Import(t.Context(), tt.template, tt.src, ImportOptions{})
			if sandbox.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v (%s), want %s naming %q", err, sandbox.KindOf(err), tt.kind, tt.want)
			}
			if got := leftovers(t, s); !slices.Equal(got, []string{"taken"}) {
				t.Errorf("left: %q", got)
			}
			if b, err := os.ReadFile(canary); err != nil || string(b) != "canary" {
				t.Errorf("the canary is %q, %v", b, err)
			}
		})
	}
}

func TestImportSkipsDevices(t *testing.T) {
	raw := makeTar(t, tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3}, file("f", "x"))
	s := newStore(t, Options{})
	d, err := s.ImportStream(t.Context(), "x", bytes.NewReader(raw), ImportOptions{SkipDevices: true})
	if err != nil || d.Skipped != 1 || d.Skips[0].Name != "dev/null" {
		t.Errorf("got %+v, %v", d, err)
	}
}

// TestImportHostileLinks has links where files of ours would be put.
func TestImportHostileLinks(t *testing.T) {
	out := t.TempDir()
	for _, tt := range []struct {
		name string
		add  []tar.Header
	}{
		{"etc", []tar.Header{link("etc", out)}},
		{"etc inside", []tar.Header{dir("usr/etc"), link("etc", "usr/etc")}},
		{"passwd", []tar.Header{dir("etc"), link("etc/passwd", filepath.Join(out, "passwd"))}},
		{"new", []tar.Header{dir("etc"), link("etc/.belljar-new", filepath.Join(out, "passwd")), file("etc/passwd", "")}},
		{"home", []tar.Header{link("home", out)}},
		{"user", []tar.Header{dir("home"), link("home/user", out)}},
		{"tmp", []tar.Header{link("tmp", out), link("var", out), link("run", out), link("root", out)}},
		{"sudoers", []tar.Header{dir("etc"), link("etc/sudoers.d", out), link("etc/machine-id", filepath.Join(out, "id")), link("etc/group", out)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, Options{})
			if _, err := s.ImportStream(t.Context(), "x", bytes.NewReader(makeTar(t, tt.add...)), ImportOptions{}); err != nil {
				t.Error(err)
			}
			if got := list(t, out); len(got) != 1 {
				t.Errorf("outside: %q", got)
			}
			root, _, err := s.Resolve(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := User(root, "user"); err != nil || got.UID != userID {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o755 && info.Mode().Perm() != 0o700 {
		t.Errorf("the mode of what a link led to changed: %v, %v", info.Mode(), err)
	}
}

// TestUserResolvesInside has a passwd that is a link: it means a file inside.
func TestUserResolvesInside(t *testing.T) {
	root := fakeHost(t, map[string]string{"etc/passwd": "-> /db/passwd", "db/passwd": "carol:x:77:78::/c:/bin/sh\nbad line\n:x:1:1::/:/\nbig:x:99999999999:1::/:/\n"})
	if got, err := User(driver.Root{Path: root}, "carol"); err != nil || got.UID != 77 || got.GID != 78 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, name := range []string{"bad line", "big", "../root", "nobody\n"} {
		if _, err := User(driver.Root{Path: root}, name); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%q: got %v, want invalid", name, err)
		}
	}
	if err := os.Remove(filepath.Join(root, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(root, "etc/passwd"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := User(driver.Root{Path: root}, "root"); err != nil || got.UID != 0 {
		t.Errorf("with a FIFO: got %+v, %v", got, err)
	}
}

func TestListGetRemove(t *testing.T) {
	s := newStore(t, Options{})
	ctx := t.Context()
	if got, err := s.List(ctx); err != nil || len(got) != 1 || got[0].Name != "host" {
		t.Fatalf("an empty store lists %+v, %v", got, err)
	}
	for _, n := range []string{"b", "a"} {
		if _, err := s.ImportStream(ctx, n, bytes.NewReader(makeTar(t, file("f", n))), ImportOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "broken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "broken", recordName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var names []string
	all, err := s.List(ctx)
	for _, tpl := range all {
		names = append(names, tpl.Name+" "+tpl.Kind)
	}
	if want := []string{"host host", "a imported", "b imported", "broken broken"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %q, %v, want %q", names, err, want)
	}
	if d, err := s.Get(ctx, "a"); err != nil || d.SizeBytes != 1 {
		t.Errorf("got %+v, %v", d, err)
	}
	for name, kind := range map[string]sandbox.Kind{"none": sandbox.NotFound, "host": sandbox.Invalid, "../a": sandbox.Invalid, ".host": sandbox.Invalid} {
		if err := s.Remove(ctx, name); sandbox.KindOf(err) != kind {
			t.Errorf("%s: got %v, want kind %s", name, err, kind)
		}
	}
	for _, n := range []string{"a", "broken"} {
		if err := s.Remove(ctx, n); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []string{"a", "none"} {
		if _, _, err := s.Resolve(ctx, n); sandbox.KindOf(err) != sandbox.NotFound {
			t.Errorf("%s: got %v, want not_found", n, err)
		}
	}
	if got := leftovers(t, s); !slices.Equal(got, []string{"b"}) {
		t.Errorf("left: %q", got)
	}
}

func TestRemoveInUse(t *testing.T) {
	s := newStore(t, Options{})
	ctx := t.Context()
	if _, err := s.ImportStream(ctx, "a", bytes.NewReader(makeTar(t, file("f", ""))), ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	root, _, err := s.Resolve(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(t.TempDir(), "lock")
	keeper, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := lifelock.Take(keeper); err != nil {
		t.Fatal(err)
	}
	id, other := sandbox.NewID(), sandbox.NewID()
	for _, id := range []sandbox.ID{id, other} {
		if err := s.Hold(ctx, root, id, lock); err != nil {
			t.Fatal(err)
		}
	}
	wantInUse := func() {
		t.Helper()
		if err := s.Remove(ctx, "a"); sandbox.KindOf(err) != sandbox.Conflict {
			t.Errorf("got %v, want conflict", err)
		}
	}
	wantInUse()
	for range 2 {
		if err := s.Release(ctx, root, id); err != nil {
			t.Error(err)
		}
	}
	wantInUse()
	if err := s.ReleaseID(ctx, other); err != nil {
		t.Error(err)
	}
	if err := s.Hold(ctx, root, id, lock); err != nil {
		t.Fatal(err)
	}
	wantInUse()
	keeper.Close() // the keeper died
	if err := s.Remove(ctx, "a"); err != nil {
		t.Errorf("a dead keeper keeps a template: %v", err)
	}
	if err := s.Hold(ctx, root, id, lock); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("holding what is gone: got %v, want not_found", err)
	}
	if err := s.Hold(ctx, driver.Root{Path: "/etc/root"}, id, lock); err == nil {
		t.Error("a root that is not the store's was held")
	}
}

// TestImportKilled kills a process in the middle of an import; the next one
// removes what it left.
func TestImportKilled(t *testing.T) {
	if dir := os.Getenv("BELLJAR_TEST_IMPORT"); dir != "" {
		New(dir, Options{}).ImportStream(t.Context(), "killed", os.Stdin, ImportOptions{})
		return
	}
	s := newStore(t, Options{})
	if _, err := s.ImportStream(t.Context(), "first", bytes.NewReader(makeTar(t, file("f", ""))), ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestImportKilled$")
	cmd.Env = append(os.Environ(), "BELLJAR_TEST_IMPORT="+s.dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	raw := makeTar(t, file("f", strings.Repeat("x", 4<<20)))
	if _, err := in.Write(raw[:len(raw)/2]); err != nil { // more than a pipe holds: it is being unpacked
		t.Fatal(err)
	}
	if got := leftovers(t, s); len(got) != 2 {
		t.Errorf("while it runs there is %q", got)
	}
	// Somebody else's work does not touch it while it lives.
	if _, err := s.ImportStream(t.Context(), "second", bytes.NewReader(makeTar(t, file("f", ""))), ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := leftovers(t, s); len(got) != 3 {
		t.Errorf("work of a living process was removed: %q", got)
	}
	if err := errors.Join(cmd.Process.Kill(), ignore(cmd.Wait())); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	if got := leftovers(t, s); !slices.Equal(got, []string{"first"}) {
		t.Errorf("left: %q", got)
	}
}

func ignore(error) error { return nil }

func TestImportCanceled(t *testing.T) {
	s := newStore(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	raw := makeTar(t, file("f", strings.Repeat("x", 1<<20)), file("g", ""))
	_, err := s.ImportStream(ctx, "x", bytes.NewReader(raw), ImportOptions{Progress: func(archive.Progress) { cancel() }})
	if sandbox.KindOf(err) != sandbox.Canceled {
		t.Errorf("got %v, want canceled", err)
	}
	if got := leftovers(t, s); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestImportSameNameAtOnce: one of them wins, whole; the others say why not.
func TestImportSameNameAtOnce(t *testing.T) {
	s := newStore(t, Options{})
	raw := makeTar(t, file("f", strings.Repeat("x", 1<<20)))
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := s.ImportStream(t.Context(), "x", bytes.NewReader(raw), ImportOptions{})
			errs <- err
		}()
	}
	fine := 0
	for range 8 {
		switch err := <-errs; sandbox.KindOf(err) {
		case "":
			fine++
		case sandbox.AlreadyExists:
		default:
			t.Error(err)
		}
	}
	if got := leftovers(t, s); fine != 1 || !slices.Equal(got, []string{"x"}) {
		t.Errorf("%d imports succeeded, left %q", fine, got)
	}
}

func TestCoversMap(t *testing.T) {
	for m, want := range map[string]bool{
		"0 0 4294967295\n":                 true,
		"0 1000 1\n":                       false,
		"0 1000 1\n1 100000 65535\n":       true,
		"1 100000 65535\n0 1000 1\n":       true,
		"0 1000 1\n2 100000 65535\n":       false,
		"0 1000 1\n1 100000 65534\n":       false,
		"":                                 false,
		"junk\n":                           false,
		"0 0 10\n5 100 65531\n":            true,
		"         0          0      65536": true,
	} {
		if got := coversMap(m); got != want {
			t.Errorf("%q: got %v, want %v", m, got, want)
		}
	}
}
