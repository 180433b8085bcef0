package paths

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// part is one file of an exported snapshot.
type part struct{ name, body string }

// importSnapshot loads snapshots of another installation's that are not what they
// say: with names that lead out, signed and unsigned, and with other contents.
func importSnapshot(c *caseRun) {
	good := testenv.ForeignSnapshot(c.t, sandbox.KindDirectory, map[string][]byte{"archive.tar": make([]byte, 1024)})
	parts := unpackSnapshot(c.t, good)
	load := func(way string, raw []byte, want string) {
		a := c.cli("snapshot load "+way, bytes.NewReader(raw), "snapshot", "load", "-")
		a.want = want
	}
	load("as it was", good, "ok")
	changed := bytes.Clone(parts[1].raw())
	changed[100] ^= 1
	load("with another content", packSnapshot(c.t, parts[0], part{parts[1].name, string(changed)}), "")
	load("with a longer file", packSnapshot(c.t, parts[0], part{parts[1].name, parts[1].body + "x"}), "")
	for _, name := range []string{"../../other", "/tmp/evil", "..", "manifest.json", "a/b"} {
		manifest := renamedManifest(c.t, parts[0].body, name)
		load("signed, "+name, packSnapshot(c.t, part{parts[0].name, manifest}, part{name, parts[1].body}), "")
		load("unsigned, "+name, packSnapshot(c.t, parts[0], part{name, parts[1].body}), "")
	}
	left, err := filepath.Glob(filepath.Join(c.State, "snapshots", "*.new"))
	if err != nil || len(left) > 0 {
		c.t.Errorf("left: %v, %v", left, err)
	}
	for _, p := range []string{"other", "snapshots/other"} {
		if _, err := os.Lstat(filepath.Join(c.State, p)); err == nil {
			c.t.Errorf("%s was made", p)
		}
	}
}

func (p part) raw() []byte { return []byte(p.body) }

// renamedManifest gives the file of a manifest another name and signs it again,
// with a key of nobody's.
func renamedManifest(t testing.TB, sealed, name string) string {
	t.Helper()
	var s struct {
		Manifest  image.Manifest `json:"manifest"`
		SHA256    string         `json:"sha256"`
		Key       string         `json:"key"`
		Signature string         `json:"signature"`
	}
	if err := json.Unmarshal([]byte(sealed), &s); err != nil {
		t.Fatal(err)
	}
	s.Manifest.Files[0].Name = name
	body, err := json.Marshal(s.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body)
	s.SHA256, s.Key = hex.EncodeToString(sum[:]), hex.EncodeToString(public)
	s.Signature = hex.EncodeToString(ed25519.Sign(private, append([]byte("belljar manifest\n"), body...)))
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.Parse(append(out, '\n')); err == nil {
		t.Errorf("a manifest with the file %q is taken", name)
	}
	return string(out) + "\n"
}

func unpackSnapshot(t testing.TB, raw []byte) (out []part) {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		var b []byte
		if err == nil {
			b, err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, part{h.Name, string(b)})
	}
}

func packSnapshot(t testing.TB, parts ...part) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, p := range parts {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p.name, Size: int64(len(p.body)), Mode: 0o600})
		if err == nil {
			_, err = io.WriteString(w, p.body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
