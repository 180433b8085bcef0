package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// saved makes a complete image of three files.
func saved(t testing.TB) (*Store, sandbox.ID) {
	t.Helper()
	s, id := New(t.TempDir(), NewKey()), sandbox.NewID()
	dir, err := s.Begin(id)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"state": "the kernel's objects", "pages-meta": "where", PagesName: "memory"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := &Manifest{
		Version: Version, Kind: sandbox.KindMemory, Sandbox: id, Generation: 3, Build: "b", Boundary: sandbox.GVisor,
		Template: Template{Name: "host", Kind: "host"}, Limits: sandbox.DefaultLimits(2), User: "user", Hostname: "h",
	}
	for range 2 { // Seal may be called again
		if err := s.Seal(m); err != nil {
			t.Fatal(err)
		}
	}
	if s.Has(id) || !s.HasDraft(id) {
		t.Fatal("an image has its name before it is published")
	}
	if err := s.Publish(id); err != nil {
		t.Fatal(err)
	}
	return s, id
}

func TestImage(t *testing.T) {
	s, id := saved(t)
	m, err := s.Open(id)
	if err != nil || m.Generation != 3 || len(m.Files) != 3 || m.Bytes() != int64(len("the kernel's objectswherememory")) {
		t.Errorf("got %+v, %v", m, err)
	}
	if s.HasDraft(id) || !s.Has(id) {
		t.Error("published, and not in its place")
	}
	stray := filepath.Join(s.dir, "notes")
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(func(sandbox.ID) bool { return true }); err != nil || !s.Has(id) {
		t.Errorf("a sweep took what was to be kept: %v", err)
	}
	if err := s.Sweep(func(sandbox.ID) bool { return false }); err != nil || s.Has(id) {
		t.Errorf("a sweep left an image: %v", err)
	}
	if _, err := os.Stat(stray); err != nil {
		t.Errorf("a sweep took what is no image: %v", err)
	}
	if _, err := s.Open(id); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("an image that is gone: got %v, want conflict", err)
	}
}

// Every flipped bit of the manifest and of the small files is found and the
// file named; one in the pages is when its length has changed.
func TestFlippedBits(t *testing.T) {
	s, id := saved(t)
	for _, name := range []string{ManifestName, "state", "pages-meta"} {
		path := filepath.Join(s.Path(id), name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range 8 * len(good) {
			bad := append([]byte(nil), good...)
			bad[bit/8] ^= 1 << (bit % 8)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Open(id); sandbox.KindOf(err) != sandbox.Conflict || !strings.HasSuffix(sandbox.AsError(err).Value, "/"+name) {
				t.Fatalf("%s, bit %d: got %v, want a conflict that names it", name, bit, err)
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Open(id); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(path string) error{
		"shorter":   func(p string) error { return os.Truncate(p, 3) },
		"a link":    func(p string) error { os.Remove(p); return os.Symlink("/etc/passwd", p) },
		"not there": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			s, id := saved(t)
			if err := spoil(filepath.Join(s.Path(id), PagesName)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Open(id); sandbox.KindOf(err) != sandbox.Conflict || !strings.HasSuffix(sandbox.AsError(err).Value, PagesName) {
				t.Errorf("got %v, want a conflict that names the file", err)
			}
		})
	}
}

func TestNamesOfOthers(t *testing.T) {
	s := New(t.TempDir(), NewKey())
	if err := s.Remove("../x"); err == nil {
		t.Error("a path was taken for an ID")
	}
	if _, err := s.Begin("a/b"); err == nil {
		t.Error("a path was taken for an ID")
	}
}

func FuzzManifest(f *testing.F) {
	b, err := (&Manifest{Version: Version, Kind: sandbox.KindMemory, Sandbox: sandbox.NewID(), Files: []File{{Name: "state"}}}).encode(NewKey())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"manifest":{"version":1,"files":[{"name":"../x"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if strings.Contains(file.Name, "/") {
				t.Fatalf("a file is called %q", file.Name)
			}
		}
	})
}
