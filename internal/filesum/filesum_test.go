package filesum

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
)

func TestSync(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b": "abc", "a": "", "left out": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Sync(dir, func(name string) bool { return strings.Contains(name, " ") })
	// The digests of FIPS 180-2's examples.
	want := []driver.File{
		{Name: "a", Size: 0, SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{Name: "b", Size: 3, SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
	}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := Sync(dir, nil); err == nil {
		t.Error("a link was taken for a file")
	}
}
