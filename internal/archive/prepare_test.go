package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// treeOf is a stream of a tree that is called ".".
func treeOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range append([]tar.Header{{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}}, headers...) {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = h.Uname // the content, on its way
			h.Uname, h.Size = "", int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(body))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func regular(name, body string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Uname: body}
}

// TestPrepare: what is told is what is done, and without it nothing is.
func TestPrepare(t *testing.T) {
	top := t.TempDir()
	dst := filepath.Join(top, "dst")
	stream := func() *bytes.Buffer {
		return treeOf(t,
			regular("./same", "same"), regular("./other", "new"), regular("./added", "x"),
			tar.Header{Name: "./link", Typeflag: tar.TypeSymlink, Linkname: "same"},
			tar.Header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755}, regular("./d/f", "f"),
			tar.Header{Name: "./new/", Typeflag: tar.TypeDir, Mode: 0o755}, regular("./new/f", "f"))
	}
	if err := os.MkdirAll(filepath.Join(dst, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"same": "same", "other": "old", "own": "own", "d/f": "f"} {
		if err := os.WriteFile(filepath.Join(dst, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const want = "[{DST/added true false} {DST/link true false} {DST/new true true} {DST/new/f true false} {DST/other false false}]"
	for _, place := range []bool{false, true} {
		p, err := Prepare(t.Context(), dst, stream(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		changes, err := p.Changes(t.Context())
		if got := strings.ReplaceAll(fmt.Sprint(changes), dst, "DST"); got != want || err != nil {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		if place {
			if where, err := p.Place(); where != dst || err != nil {
				t.Errorf("%q, %v", where, err)
			}
		}
		p.Close()
		body := map[bool]string{false: "old", true: "new"}[place]
		if b, err := os.ReadFile(filepath.Join(dst, "other")); string(b) != body || err != nil {
			t.Errorf("%q, %v, want %q", b, err, body)
		}
		if names, err := os.ReadDir(dst); len(names) != map[bool]int{false: 4, true: 7}[place] || err != nil {
			t.Errorf("%v, %v", names, err)
		}
		if names, err := os.ReadDir(top); len(names) != 1 || err != nil {
			t.Errorf("beside it: %v, %v", names, err)
		}
	}
	p, err := Prepare(t.Context(), dst, stream(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if changes, err := p.Changes(t.Context()); len(changes) != 0 || err != nil {
		t.Errorf("once it is there: %v, %v", changes, err)
	}
}

// TestPrepareConflict: what cannot be placed is said before it is tried.
func TestPrepareConflict(t *testing.T) {
	dst := t.TempDir()
	if err := os.Symlink("/", filepath.Join(dst, "d")); err != nil {
		t.Fatal(err)
	}
	p, err := Prepare(t.Context(), dst, treeOf(t, tar.Header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755}, regular("./d/f", "evil")), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if changes, err := p.Changes(t.Context()); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("%v, %v", changes, err)
	}
	if _, err := p.Place(); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("%v", err)
	}
}
