package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = "text of " + h.Name
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestTarIn(t *testing.T) {
	b := newBox(t, options{})
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	tests := []struct {
		name    string
		entries []tar.Header
		kind    sandbox.Kind // "" is success
		there   []string
	}{
		{"plain", []tar.Header{reg("a"), {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o500}, reg("d/b"), reg("e/f/g"), link("l", "d/b")}, "", []string{"a", "d/b", "e/f/g", "l"}},
		{"dot", []tar.Header{{Name: "./", Typeflag: tar.TypeDir}, reg("./a")}, "", []string{"a"}},
		{"twice", []tar.Header{reg("a"), reg("a")}, "", []string{"a"}},
		{"dotdot", []tar.Header{reg("../evil")}, sandbox.Invalid, nil},
		{"dotdot inside", []tar.Header{reg("a/../b")}, sandbox.Invalid, nil},
		{"absolute", []tar.Header{reg("/tmp/evil")}, sandbox.Invalid, nil},
		{"link out", []tar.Header{link("l", "../../etc")}, sandbox.Invalid, nil},
		{"absolute link", []tar.Header{link("l", "/etc/passwd")}, sandbox.Invalid, nil},
		{"through a link", []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, link("l", "d"), reg("l/x")}, sandbox.Invalid, nil},
		{"hard link", []tar.Header{reg("a"), {Name: "h", Linkname: "a", Typeflag: tar.TypeLink}}, "", []string{"a", "h"}},
		{"hard link out", []tar.Header{{Name: "h", Linkname: "../../etc/passwd", Typeflag: tar.TypeLink}}, sandbox.Invalid, nil},
		{"device", []tar.Header{{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "fifo", Typeflag: tar.TypeFifo}, reg("a")}, "", []string{"a"}},
		{"metadata", []tar.Header{{Name: "s", Typeflag: tar.TypeReg, Mode: 0o7777, Uid: 0, ModTime: time.Unix(1<<33, 0), Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}}, "", []string{"s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst := "in " + tt.name
			err := b.PutTar(t.Context(), dst, "", bytes.NewReader(archive(t, tt.entries...)))
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v, want kind %q", err, tt.kind)
			}
			var got []string
			root := filepath.Join(b.home, dst)
			filepath.WalkDir(root, func(p string, d os.DirEntry, _ error) error {
				if d != nil && !d.IsDir() {
					rel, _ := filepath.Rel(root, p)
					got = append(got, rel)
				}
				return nil
			})
			if tt.kind == "" && strings.Join(got, " ") != strings.Join(tt.there, " ") {
				t.Errorf("got %q, want %q", got, tt.there)
			}
			if _, err := os.Lstat(filepath.Join(b.home, "evil")); err == nil {
				t.Error("written outside of the destination")
			}
		})
	}
	st, err := b.Stat(t.Context(), "in metadata/s", "")
	if err != nil || st.Mode != 0o777 || st.ModTime.Year() > 2106 || st.UID != uint32(uidOf(b)) {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err := b.Stat(t.Context(), "in plain/d", ""); err != nil || st.Mode != 0o500 {
		t.Errorf("got %+v, %v", st, err)
	}
	os.Chmod(filepath.Join(b.home, "in plain/d"), 0o700) // so that it can be removed
	wantKind(t, "garbage", b.PutTar(t.Context(), "g", "", strings.NewReader(strings.Repeat("x", 2000))), sandbox.Invalid)
	cut := archive(t, reg("a"))
	if err := b.PutTar(t.Context(), "cut", "", bytes.NewReader(cut[:520])); err == nil {
		t.Error("an archive that breaks off was taken")
	}
}

func uidOf(b *box) int {
	if b.user == "user" {
		return 1000
	}
	return os.Geteuid()
}

func TestTarOut(t *testing.T) {
	b := newBox(t, options{})
	b.put("d/sub/f", "text")
	b.put("d/\xff", "raw")
	b.put("d/big", strings.Repeat("0123456789", 100_000))
	os.Symlink("sub/f", filepath.Join(b.home, "d/link"))
	os.Symlink("/etc", filepath.Join(b.home, "d/out"))
	os.Symlink("d", filepath.Join(b.home, "named"))
	read := func(p string) map[string]string {
		t.Helper()
		r, err := b.GetTar(t.Context(), p, "")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		out := map[string]string{}
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				return out
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			out[h.Name] = string(text) + h.Linkname
		}
	}
	want := map[string]string{
		"d/": "", "d/sub/": "", "d/sub/f": "text", "d/\xff": "raw", "d/link": "sub/f", "d/out": "/etc",
		"d/big": strings.Repeat("0123456789", 100_000),
	}
	got := read("d")
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%q: got %d bytes, want %d", k, len(got[k]), len(v))
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d entries, want %d", len(got), len(want))
	}
	if one := read("d/sub/f"); len(one) != 1 || one["f"] != "text" {
		t.Errorf("a file: got %q", one)
	}
	if via := read("named"); via["named/sub/f"] != "text" {
		t.Errorf("a link that is named: got %d entries", len(via))
	}
	_, err := b.GetTar(t.Context(), "none", "")
	wantKind(t, "missing", err, sandbox.NotFound)
	_, err = b.GetTar(t.Context(), "/dev/null", "")
	wantKind(t, "device", err, sandbox.Invalid)
	// And back in again.
	r, err := b.GetTar(t.Context(), "d/sub", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := b.PutTar(t.Context(), "copy", "", r); err != nil {
		t.Fatal(err)
	}
	if text, err := b.get("copy/sub/f", ""); err != nil || text != "text" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestWatch(t *testing.T) {
	b := newBox(t, options{})
	b.put("w/old", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := b.Watch(ctx, "w", "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var seen []string
	expect := func(op, rel string) {
		t.Helper()
		p := filepath.Join(b.home, "w", rel)
		for {
			for _, s := range seen {
				if s == op+" "+p {
					return
				}
			}
			e, err := w.Next()
			if err != nil {
				t.Fatalf("waiting for %s %s after %q: %v", op, rel, seen, err)
			}
			at := e.Path
			if e.RawPath != nil {
				at = string(e.RawPath)
			}
			seen = append(seen, e.Op+" "+at)
		}
	}
	b.put("w/old", "2")
	expect("write", "old")
	for _, s := range seen {
		if strings.HasPrefix(s, "create") {
			t.Errorf("overwriting looked like %q", s)
		}
	}
	b.put("w/new\xff", "1")
	expect("create", "new\xff")
	b.put("w/sub/deep/file", "1")
	expect("create", "sub")
	expect("create", "sub/deep/file")
	os.WriteFile(filepath.Join(b.home, "w/sub/deep/more"), []byte("x"), 0o644)
	expect("create", "sub/deep/more")
	expect("write", "sub/deep/more")
	os.Chmod(filepath.Join(b.home, "w/old"), 0o600)
	expect("chmod", "old")
	os.Rename(filepath.Join(b.home, "w/sub"), filepath.Join(b.home, "w/moved"))
	expect("rename", "sub")
	expect("create", "moved")
	os.WriteFile(filepath.Join(b.home, "w/moved/deep/after"), nil, 0o644)
	expect("create", "moved/deep/after")
	os.Remove(filepath.Join(b.home, "w/old"))
	expect("remove", "old")
	os.RemoveAll(filepath.Join(b.home, "w"))
	for {
		if _, err := w.Next(); err != nil {
			if err != io.EOF {
				t.Errorf("the end: got %v", err)
			}
			break
		}
	}
	_, err = b.Watch(t.Context(), "none", "", false)
	wantKind(t, "missing", err, sandbox.NotFound)
	b.put("file", "")
	_, err = b.Watch(t.Context(), "file", "", false)
	wantKind(t, "a file", err, sandbox.Invalid)
}

func TestWatchBounds(t *testing.T) {
	b := newBox(t, options{})
	os.MkdirAll(filepath.Join(b.home, "w"), 0o777)
	for i := range 8300 {
		os.Mkdir(filepath.Join(b.home, "w", strconv.Itoa(i)), 0o777)
	}
	_, err := b.Watch(t.Context(), "w", "", true)
	wantKind(t, "too many directories", err, sandbox.ResourceExhausted)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := b.Watch(ctx, b.home, "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Nobody reads while there are more events than are kept.
	for i := range 40_000 {
		f := filepath.Join(b.home, "f"+string(rune('a'+i%2)))
		os.WriteFile(f, nil, 0o644)
		os.Remove(f)
	}
	for {
		e, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e.Dropped > 0 {
			if e.Op != "overflow" || e.Path != b.home {
				t.Errorf("got %+v", e)
			}
			break
		}
	}
}
