package filesum

import (
	"crypto/sha256"
	"encoding/hex"
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

// A file and a stream of the same bytes have the same digest, whatever their
// length and however they come.
func TestDigest(t *testing.T) {
	data := make([]byte, 2*PieceLen+12345)
	for i := range data {
		data[i] = byte(i * 2654435761 >> 7)
	}
	seen := map[string]int{}
	for _, n := range []int{0, 1, PieceLen - 1, PieceLen, PieceLen + 1, 2 * PieceLen, 2*PieceLen + 1, len(data)} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		sum, err := Digest(f)
		f.Close()
		h := NewHash()
		for at := 0; at < n; at += 1000003 {
			h.Write(data[at:min(n, at+1000003)])
		}
		if stream := h.Hex(); err != nil || sum != stream {
			t.Errorf("%d bytes: the file's is %s, %v, the stream's %s", n, sum, err, stream)
		}
		if other, twice := seen[sum]; twice {
			t.Errorf("%d and %d bytes have the same digest", n, other)
		}
		seen[sum] = n
		if plain := sha256.Sum256(data[:n]); (sum == hex.EncodeToString(plain[:])) != (n <= PieceLen) {
			t.Errorf("%d bytes: got %s, the plain SHA-256 is %x", n, sum, plain)
		}
	}
}
