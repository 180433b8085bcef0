package archive

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// tree lists the files below dir as "name=content", directories with a slash.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil || p == dir {
			return err
		}
		name := strings.TrimPrefix(p, dir+"/")
		switch {
		case info.IsDir():
			out = append(out, name+"/")
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(p)
			out = append(out, name+"->"+to)
			return err
		default:
			raw, err := os.ReadFile(p)
			out = append(out, name+"="+string(raw))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mkTree(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		name, body, isFile := strings.Cut(n, "=")
		link, to, isLink := strings.Cut(n, "->")
		var err error
		switch p := filepath.Join(dir, name); {
		case isLink:
			err = os.Symlink(to, filepath.Join(dir, link))
		case isFile:
			err = os.WriteFile(p, []byte(body), 0o644)
		default:
			err = os.MkdirAll(p, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlace(t *testing.T) {
	one := []entry{file("f", "new")}
	d := []entry{dir("d"), file("d/x", "new"), dir("d/sub"), file("d/sub/y", "new")}
	root := []entry{dir("./"), file("./x", "new"), dir("./sub"), file("./sub/y", "new")}
	tests := []struct {
		name   string
		before []string
		stream []entry
		dst    string
		kind   sandbox.Kind
		after  []string // nil: as before
	}{
		{"file to new name", nil, one, "g", "", []string{"g=new"}},
		{"file into directory", []string{"in"}, one, "in", "", []string{"in/", "in/f=new"}},
		{"file over file", []string{"g=old"}, one, "g", "", []string{"g=new"}},
		{"file over file in directory", []string{"in", "in/f=old"}, one, "in/", "", []string{"in/", "in/f=new"}},
		{"file over link keeps link", []string{"real=old", "g->real"}, one, "g", "", []string{"g->real", "real=new"}},
		{"file beside link in directory", []string{"in", "real=old", "in/f->../real"}, one, "in", "", []string{"in/", "in/f=new", "real=old"}},
		{"file over directory", []string{"in", "in/f"}, one, "in", sandbox.Conflict, nil},
		{"file to missing directory", nil, one, "no/g", sandbox.Invalid, nil},
		{"file to missing name with slash", nil, one, "g/", sandbox.Invalid, nil},
		{"directory to new name", nil, d, "e", "", []string{"e/", "e/sub/", "e/sub/y=new", "e/x=new"}},
		{"directory to new name with slash", nil, d, "e/", "", []string{"e/", "e/sub/", "e/sub/y=new", "e/x=new"}},
		{"directory into directory", []string{"in"}, d, "in", "", []string{"in/", "in/d/", "in/d/sub/", "in/d/sub/y=new", "in/d/x=new"}},
		{"directory merged", []string{"in", "in/d", "in/d/x=old", "in/d/z=old"}, d, "in", "",
			[]string{"in/", "in/d/", "in/d/sub/", "in/d/sub/y=new", "in/d/x=new", "in/d/z=old"}},
		{"directory over file", []string{"g=old"}, d, "g", sandbox.Conflict, nil},
		{"directory over link to directory", []string{"in", "other", "in/d->../other"}, d, "in", sandbox.Conflict, nil},
		{"conflict below changes nothing", []string{"in", "in/d", "in/d/x=old", "in/d/sub=file"}, d, "in", sandbox.Conflict, nil},
		{"contents to new name", nil, root, "e", "", []string{"e/", "e/sub/", "e/sub/y=new", "e/x=new"}},
		{"contents into directory", []string{"in", "in/x=old"}, root, "in", "", []string{"in/", "in/sub/", "in/sub/y=new", "in/x=new"}},
		{"two tops", nil, []entry{file("a", ""), file("b", "")}, "g", sandbox.Invalid, nil},
		{"link beside the top", nil, []entry{dir("d"), link("d/l", "../secret")}, "g", sandbox.Invalid, nil},
		{"half", nil, []entry{file("d/x", "new"), file("d/../y", "")}, "g", sandbox.Invalid, nil},
		{"nothing", nil, nil, "g", sandbox.Invalid, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			mkTree(t, base, tt.before...)
			before := tree(t, base)
			dst := base + "/" + tt.dst
			_, where, err := Place(t.Context(), dst, bytes.NewReader(makeTar(t, tt.stream...)), Options{})
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v, want kind %q", err, tt.kind)
			}
			want := tt.after
			if tt.kind != "" {
				want = before
			} else if _, err := os.Lstat(where); err != nil {
				t.Errorf("Place says it lies at %q: %v", where, err)
			}
			if got := tree(t, base); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

func TestPlaceRefusesSpecialFiles(t *testing.T) {
	base := t.TempDir()
	fifo := filepath.Join(base, "f")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	raw := makeTar(t, file("f", "x"))
	for _, dst := range []string{fifo, "/dev/null", base} {
		if _, _, err := Place(t.Context(), dst, bytes.NewReader(raw), Options{}); err == nil {
			t.Errorf("%s: a special file was replaced", dst)
		}
	}
	if st := stat(t, "/dev/null"); st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Fatal("/dev/null is gone")
	}
	if _, _, err := Place(t.Context(), "", bytes.NewReader(raw), Options{}); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v for an empty path, want invalid", err)
	}
}

func TestCommit(t *testing.T) {
	base := t.TempDir()
	mkTree(t, base, "new", "new/f=x", "taken", "taken/g=y")
	f := openDir(t, base)
	if err := Commit(f, "new", "taken"); sandbox.KindOf(err) != sandbox.AlreadyExists {
		t.Errorf("got %v, want already_exists", err)
	}
	if err := Commit(f, "new", "done"); err != nil {
		t.Error(err)
	}
	if got, want := tree(t, base), []string{"done/", "done/f=x", "taken/", "taken/g=y"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := Remove(f, "done"); err != nil {
		t.Error(err)
	}
	if err := Remove(f, "done"); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(base, "done")); !errors.Is(err, os.ErrNotExist) {
		t.Error("done is still there")
	}
}

// TestRemoveFollowsNoLink removes a tree with links to what must stay.
func TestRemoveFollowsNoLink(t *testing.T) {
	j := newJail(t)
	mkTree(t, j.root, "d", "d/e", "d/e/l->"+j.outer+"/host", "d/up->../..")
	if err := Remove(openDir(t, j.root), "d"); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, j.root); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	j.check(t)
}
