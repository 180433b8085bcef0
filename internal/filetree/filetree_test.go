package filetree

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listOf writes a list as a guest's kernel does.
func listOf(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		var body []byte
		if h.Typeflag == tar.TypeReg {
			body = binary.LittleEndian.AppendUint64(nil, uint64(h.Size))
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write(body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func dir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
func file(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 40}
}
func gone(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeChar} }
func opaque(name string) tar.Header {
	h := dir(name)
	h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	return h
}

func template(t *testing.T) *Lower {
	t.Helper()
	root, usr := t.TempDir(), t.TempDir()
	for _, d := range []string{"etc/ssl", "usr", "run", "tmp/.X11-unix"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(root, "etc/passwd"), filepath.Join(root, "etc/ssl/a"), filepath.Join(root, "etc/ssl/b"), filepath.Join(usr, "tee")} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLower(root)
	if err == nil {
		err = l.Lay(usr, "/usr")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestDiff(t *testing.T) {
	root := dir("./")
	for name, c := range map[string]struct {
		list []tar.Header
		want string
	}{
		"nothing":           {[]tar.Header{root}, ""},
		"added and changed": {[]tar.Header{root, dir("./etc/"), file("./etc/passwd"), file("./etc/new")}, "C /etc,A /etc/new,C /etc/passwd"},
		"deleted":           {[]tar.Header{root, dir("./usr/"), gone("./usr/tee"), gone("./usr/never")}, "C /usr,D /usr/tee"},
		"emptied":           {[]tar.Header{root, dir("./etc/"), opaque("./etc/ssl/"), file("./etc/ssl/b")}, "C /etc,C /etc/ssl,D /etc/ssl/a,C /etc/ssl/b"},
		"in the place of a link": {
			[]tar.Header{root, dir("./link/"), file("./link/passwd")}, "C /link,A /link/passwd",
		},
		"in the place of a file": {
			[]tar.Header{root, dir("./etc/"), dir("./etc/passwd/"), file("./etc/passwd/x")}, "C /etc,C /etc/passwd,A /etc/passwd/x",
		},
		"our own": {[]tar.Header{root, dir("./run/"), dir("./run/belljar/"), file("./run/belljar/token"), dir("./.belljar/")}, ""},
		"far below": {
			[]tar.Header{root, dir("./var/"), dir("./var/lib/"), dir("./var/lib/dbus/"), file("./var/lib/dbus/machine-id"), dir("./etc/"), file("./etc/machine-id")}, "",
		},
		"an empty one": {[]tar.Header{root, dir("./run/"), dir("./run/mine/"), dir("./run/belljar/")}, "C /run,A /run/mine"},
		"beside our own": {
			[]tar.Header{root, dir("./run/"), dir("./run/belljar/"), file("./run/pid")}, "C /run,A /run/pid",
		},
		"a hard link": {
			[]tar.Header{root, file("./a"), {Name: "./b", Typeflag: tar.TypeLink, Linkname: "./a"}}, "A /a,A /b",
		},
		"not UTF-8": {[]tar.Header{root, file("./\xff\n")}, "A /\xff\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Diff(Entries(listOf(t, c.list...)), template(t), Own)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, d := range got {
				lines = append(lines, string(d.Kind)+" "+d.Path)
				if d.Type == File && d.Kind != Deleted && d.Size != 1<<40 {
					t.Errorf("%+v", d)
				}
			}
			if s := strings.Join(lines, ","); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
}

// TestHostileLists: what no honest kernel writes is an error and nothing else.
func TestHostileLists(t *testing.T) {
	root := dir("./")
	short := listOf(t, root, file("./f")).Bytes()
	for name, raw := range map[string][]byte{
		"no tar":       bytes.Repeat([]byte("x"), 2048),
		"cut off":      short[:len(short)-2000],
		"absolute":     listOf(t, root, file("/etc/passwd")).Bytes(),
		"bare":         listOf(t, root, file("etc/passwd")).Bytes(),
		"dot dot":      listOf(t, root, file("./../x")).Bytes(),
		"dot":          listOf(t, root, file("././x")).Bytes(),
		"empty part":   listOf(t, root, file(".//x")).Bytes(),
		"long name":    listOf(t, root, file("./"+strings.Repeat("n", 256))).Bytes(),
		"deep":         listOf(t, root, file("."+strings.Repeat("/d", maxDepth+2))).Bytes(),
		"no parent":    listOf(t, root, file("./a/b")).Bytes(),
		"no root":      listOf(t, file("./a")).Bytes(),
		"out of order": listOf(t, root, dir("./a/"), dir("./b/"), file("./a/x")).Bytes(),
		"link out":     listOf(t, root, tar.Header{Name: "./a", Typeflag: tar.TypeLink, Linkname: "../x"}).Bytes(),
		"unknown kind": listOf(t, root, tar.Header{Name: "./a", Typeflag: 'V'}).Bytes(),
		"no size":      noSize(t),
		"a size below": listOf(t, root, tar.Header{Name: "./a", Typeflag: tar.TypeReg, Size: -1}).Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Diff(Entries(bytes.NewReader(raw)), template(t), nil); err == nil {
				t.Errorf("%+v", got)
			}
		})
	}
}

func noSize(t testing.TB) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir})
	w.WriteHeader(&tar.Header{Name: "./f", Typeflag: tar.TypeReg, Size: 4})
	w.Write([]byte("four"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestLowerStaysInside: a path of a guest's choosing is looked at beneath the
// template and through no link.
func TestLowerStaysInside(t *testing.T) {
	l := template(t)
	for path, want := range map[string]Type{
		"/": Dir, "/etc": Dir, "/etc/passwd": File, "/link": Symlink, "/usr": Dir, "/usr/tee": File,
		"/link/passwd": "", "/etc/passwd/x": "", "/none": "", "/usr/../etc/passwd": "", "/../../etc/passwd": "",
		"/" + strings.Repeat("n", 300): "",
	} {
		if got, err := l.Type(path); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", path, got, err, want)
		}
	}
	names, err := l.Names("/etc")
	slices.Sort(names)
	if fmt.Sprint(names) != "[passwd ssl]" || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := l.Names("/link"); len(names) != 0 || err != nil {
		t.Errorf("through a link: %v, %v", names, err)
	}
}

func FuzzEntries(f *testing.F) {
	f.Add(listOf(f, dir("./"), file("./a"), gone("./b"), opaque("./d/")).Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		var last error
		for e, err := range iter.Seq2[Entry, error](Entries(bytes.NewReader(raw))) {
			if last != nil {
				t.Fatal("something follows an error")
			}
			if last = err; err == nil && (!strings.HasPrefix(e.Path, "/") || e.Type == "" || e.Size < 0) {
				t.Fatalf("%+v", e)
			}
		}
	})
}
