package cli

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestParseEnd(t *testing.T) {
	for in, want := range map[string]end{
		"-":          {std: true},
		"a.txt":      {path: "a.txt"},
		"work:":      {ref: "work", path: "."},
		"work:/a:b":  {ref: "work", path: "/a:b"},
		"work:x":     {ref: "work", path: "x"},
		"./work:x":   {path: "./work:x"},
		"../a:b":     {path: "../a:b"},
		"/tmp/a:b":   {path: "/tmp/a:b"},
		":x":         {path: ":x"},
		"dir/work:x": {path: "dir/work:x"},
	} {
		if got := parseEnd(in); got != want {
			t.Errorf("parseEnd(%q) = %+v, want %+v", in, got, want)
		}
	}
}

func TestRenameTop(t *testing.T) {
	for _, tc := range []struct {
		name, top string
		in, want  []string // "name" or "name->hard link target"
	}{
		{"file", "b", []string{"a"}, []string{"b"}},
		{"directory", "new", []string{"d/", "d/x", "d/l->d/x"}, []string{"new/", "new/x", "new/l->new/x"}},
		{"tree called dot", "new", []string{"./", "./x", "y", ".hidden"}, []string{"new/", "new/x", "new/y", "new/.hidden"}},
		{"content only", ".", []string{"d/", "d/x/", "d/x/y"}, []string{"./", "./x/", "./x/y"}},
		{"dot to dot", ".", []string{".", "./x"}, []string{".", "./x"}},
		{"names like the top", "n", []string{"d/", "d2", "dx/y"}, []string{"n/", "d2", "dx/y"}},
		{"out of the tree", "n", []string{"d/", "../x", "/etc/x", "d/../../x"}, []string{"n/", "../x", "/etc/x", "n/../../x"}},
		{"first climbs", "n", []string{"../x"}, []string{"../x"}},
		{"first absolute", "n", []string{"/x"}, []string{"/x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			for _, n := range tc.in {
				name, link, ok := strings.Cut(n, "->")
				h := &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}
				if ok {
					h.Typeflag, h.Linkname = tar.TypeLink, link
				} else if strings.HasSuffix(name, "/") {
					h.Typeflag = tar.TypeDir
				}
				if err := tw.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
			}
			if err := tw.Close(); err != nil {
				t.Fatal(err)
			}
			r := renameTop(&b, tc.top, nil)
			defer r.Close()
			var got []string
			for tr := tar.NewReader(r); ; {
				h, err := tr.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				n := h.Name
				if h.Linkname != "" {
					n += "->" + h.Linkname
				}
				got = append(got, n)
			}
			if strings.Join(got, " ") != strings.Join(tc.want, " ") {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUmask(t *testing.T) {
	if m := umask(); m > 0o777 {
		t.Errorf("umask() = %o", m)
	}
}

// TestWatchRepositories: a directory that git would take for a repository is told
// of under any name, once; a .git is told of by what lies in it.
func TestWatchRepositories(t *testing.T) {
	for _, tt := range []struct {
		name  string
		names []string
		want  []string
	}{
		{"bare", []string{"d/b/", "d/b/HEAD", "d/b/objects/", "d/b/refs/", "d/b/refs/heads/"}, []string{"/to/d/b"}},
		{"without entries for directories", []string{"x/objects/aa/1", "x/refs/heads/main"}, []string{"/to/x"}},
		{"the top", []string{"objects/", "refs/"}, []string{"/to"}},
		{"dots", []string{"./x/./objects/", "./x/refs"}, []string{"/to/x"}},
		{"links", []string{"x/objects", "x/refs"}, []string{"/to/x"}},
		{"one half", []string{"x/objects/", "y/refs/"}, nil},
		{"a clone", []string{"p/.git/objects/", "p/.git/refs/", "p/.git/modules/m/objects/", "p/.git/modules/m/refs/"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &tarWatch{to: "/to"}
			for _, n := range tt.names {
				typ := byte(tar.TypeReg)
				if strings.HasSuffix(n, "/") {
					typ = tar.TypeDir
				}
				w.entry(&tar.Header{Name: n, Typeflag: typ}, io.Discard)
			}
			if !slices.Equal(w.trusted.names, tt.want) {
				t.Errorf("got %v, want %v", w.trusted.names, tt.want)
			}
		})
	}
}
