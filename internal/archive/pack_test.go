package archive

import (
	"archive/tar"
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestPackRoundTrip(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	odd := []string{
		"new\nline", "\x1b[2J", "\u202eabc", "; rm -rf $(id)", "-rf", "bytes\xff\xfe", strings.Repeat("é", 127) + "x",
		"cafe\u0301", "caf\u00e9", "CON", "dot.", "space ", "back\\slash", "日本語", "🫙",
	}
	mkTree(t, src, "top", "top/d", "top/empty", "top/d/deep", "top/l->d/f", "top/out->/etc/passwd", "top/dangling->nothing")
	for _, n := range odd {
		mkTree(t, src, "top/d/"+n+"="+n)
	}
	mkTree(t, src, "top/d/f=first")
	if err := os.Link(filepath.Join(src, "top/d/f"), filepath.Join(src, "top/h")); err != nil {
		t.Fatal(err)
	}
	want := tree(t, filepath.Join(src, "top"))

	if err := unix.Mkfifo(filepath.Join(src, "top/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(src, "top/sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	var b bytes.Buffer
	sum, err := Pack(t.Context(), &b, filepath.Join(src, "top"), PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var skipped []string
	for _, s := range sum.Skips {
		skipped = append(skipped, s.Name)
	}
	if w := []string{"top/pipe", "top/sock"}; !slices.Equal(skipped, w) {
		t.Errorf("skipped %q, want %q", sum.Skips, w)
	}
	if _, err := Unpack(t.Context(), openDir(t, dst), &b, Options{Links: LinksRooted}); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, filepath.Join(dst, "top")); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if a, b := stat(t, filepath.Join(dst, "top/h")), stat(t, filepath.Join(dst, "top/d/f")); a.Ino != b.Ino {
		t.Error("the hard link became a copy")
	}
}

func TestPackTop(t *testing.T) {
	base := t.TempDir()
	mkTree(t, base, "d", "d/f=x", "l->d", "d/g->f")
	tests := []struct {
		name, path string
		o          PackOptions
		want       []string
	}{
		{"directory", "d", PackOptions{}, []string{"d/", "d/f", "d/g"}},
		{"link to directory", "l", PackOptions{}, []string{"l/", "l/f", "l/g"}},
		{"link to file", "d/g", PackOptions{}, []string{"g"}},
		{"renamed", "d/f", PackOptions{Name: "other"}, []string{"other"}},
		{"contents", "d", PackOptions{Name: "."}, []string{"./", "./f", "./g"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			if _, err := Pack(t.Context(), &b, filepath.Join(base, tt.path), tt.o); err != nil {
				t.Fatal(err)
			}
			if got := names(t, &b); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func names(t testing.TB, r io.Reader) []string {
	t.Helper()
	var out []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h.Name)
	}
}

func TestPackRefuses(t *testing.T) {
	base := t.TempDir()
	mkTree(t, base, "loop->loop")
	if err := unix.Mkfifo(filepath.Join(base, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]sandbox.Kind{
		filepath.Join(base, "none"): sandbox.NotFound,
		filepath.Join(base, "loop"): sandbox.Invalid,
		filepath.Join(base, "pipe"): sandbox.Invalid, // and does not wait for a writer
		"/dev/null":                 sandbox.Invalid,
	} {
		_, err := Pack(t.Context(), io.Discard, path, PackOptions{})
		if sandbox.KindOf(err) != kind {
			t.Errorf("%s: got %v, want kind %s", path, err, kind)
		}
	}
}

func TestPackExcludes(t *testing.T) {
	base := t.TempDir()
	mkTree(t, base, "a", "a/f=x", "b", "b/f=x")
	info, err := os.Stat(filepath.Join(base, "a"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := Pack(t.Context(), &b, base, PackOptions{Name: ".", Exclude: []os.FileInfo{info}}); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, &b), []string{"./", "./b/", "./b/f"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSparse carries a file with a hole of 2 GiB: it stays one, and memory does
// not grow with it.
func TestSparse(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	const size = 2<<30 + 5
	f, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, s := range map[int64]string{0: "head", 1 << 30: "middle", size - 4: "tail"} {
		if _, err := f.WriteAt([]byte(s), at); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, w := io.Pipe()
	go func() {
		_, err := Pack(t.Context(), w, filepath.Join(src, "sparse"), PackOptions{})
		w.CloseWithError(err)
	}()
	if _, _, err := Place(t.Context(), dst, r, Options{}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 32<<20 {
		t.Errorf("memory grew by %d bytes", grown)
	}
	st := stat(t, filepath.Join(dst, "sparse"))
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("got %d bytes in %d blocks, want %d in a few", st.Size, st.Blocks, size)
	}
	got, err := os.Open(filepath.Join(dst, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for at, s := range map[int64]string{0: "head", 1 << 30: "middle", size - 4: "tail"} {
		b := make([]byte, len(s))
		if _, err := got.ReadAt(b, at); err != nil || string(b) != s {
			t.Errorf("at %d: got %q, %v, want %q", at, b, err, s)
		}
	}
}
