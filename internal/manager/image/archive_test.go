package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/belljar-sh/belljar/sandbox"
)

func accept(*Manifest) error { return nil }

// load reads an archive into a store of the same key, and checks that a failure
// leaves nothing.
func load(t testing.TB, key *Key, archive []byte) (*Manifest, error) {
	t.Helper()
	s := New(t.TempDir(), key)
	m, err := s.ReadArchive(t.Context(), bytes.NewReader(archive), accept)
	if err != nil {
		if left, rerr := os.ReadDir(s.dir); rerr != nil || len(left) > 0 {
			t.Errorf("after %v: left %v, %v", err, left, rerr)
		}
		return nil, err
	}
	if err := errors.Join(s.Seal(m), s.Publish(m.ID())); err != nil {
		t.Fatal(err)
	}
	_, err = s.Verify(m.ID())
	return m, err
}

func archiveOf(t testing.TB, s *Store, id sandbox.ID) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteArchive(t.Context(), &b, id); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchive(t *testing.T) {
	s, id := saved(t)
	// A hole, which an archive keeps as one.
	pages := filepath.Join(s.Path(id), PagesName)
	if err := errors.Join(os.Truncate(pages, 3<<20), os.Rename(s.Path(id), s.Draft(id))); err != nil {
		t.Fatal(err)
	}
	m := &Manifest{Version: Version, Kind: sandbox.KindMemory, Sandbox: id, Boundary: sandbox.GVisor}
	if err := errors.Join(s.Seal(m), s.Publish(id)); err != nil {
		t.Fatal(err)
	}
	archive := archiveOf(t, s, id)
	if len(archive) > 64<<10 {
		t.Errorf("the archive has %d bytes: are zeros not compressed?", len(archive))
	}
	got, err := load(t, s.key, archive)
	if err != nil || got.ID() != id || len(got.Files) != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	for cut := range 64 {
		n := len(archive) * cut / 64
		if _, err := load(t, s.key, archive[:n]); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("cut after %d bytes: got %v, want invalid", n, err)
		}
	}
	if _, err := load(t, s.key, append(bytes.Clone(archive), "more"...)); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("something behind the end: got %v, want invalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.WriteArchive(ctx, io.Discard, id); err == nil {
		t.Error("an export went on after its caller had gone")
	}
	// What does not fit is refused before it is written, and what nobody accepts
	// is not written at all.
	no := errors.New("no")
	into := New(t.TempDir(), s.key)
	if _, err := into.ReadArchive(t.Context(), bytes.NewReader(archive), func(*Manifest) error { return no }); !errors.Is(err, no) {
		t.Errorf("got %v, want the refusal", err)
	}
}

// One flipped bit anywhere in the unpacked stream is found. In the compressed one
// it may hit what carries nothing, but then the image is the same.
func TestArchiveFlippedBits(t *testing.T) {
	s, id := saved(t)
	archive := archiveOf(t, s, id)
	plain := unpack(t, archive)
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		bad := bytes.Clone(plain)
		at := r.IntN(len(bad))
		bad[at] ^= 1 << r.IntN(8)
		if m, err := load(t, s.key, pack(t, bad)); err == nil && !bytes.Equal(contentOf(t, bad), contentOf(t, plain)) {
			t.Fatalf("a flipped bit at %d was not found: %+v", at, m)
		}
	}
	for range 1000 {
		bad := bytes.Clone(archive)
		bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		if m, err := load(t, s.key, bad); err == nil && m.ID() != id {
			t.Fatalf("a flipped bit made another image of it: %+v", m)
		}
	}
}

// contentOf is what an archive holds: padding and the times of its files are
// nothing.
func contentOf(t testing.TB, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	r := tar.NewReader(bytes.NewReader(plain))
	for {
		h, err := r.Next()
		if err != nil {
			return out.Bytes()
		}
		out.WriteString(h.Name + "\n")
		if _, err := io.Copy(&out, r); err != nil {
			return out.Bytes()
		}
	}
}

func unpack(t testing.TB, archive []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pack(t testing.TB, plain []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(plain, nil)
}

// entry is a file of an archive that somebody has made by hand.
type entry struct {
	h    tar.Header
	body string
}

func made(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.h.Typeflag == 0 {
			e.h.Typeflag = tar.TypeReg
		}
		if e.h.Size == 0 {
			e.h.Size = int64(len(e.body))
		}
		if err := w.WriteHeader(&e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	w.Close() // a short body is meant
	return pack(t, b.Bytes())
}

func file(name, body string) entry { return entry{tar.Header{Name: name, Mode: 0o600}, body} }

func TestHostileArchives(t *testing.T) {
	s, id := saved(t)
	b, err := os.ReadFile(filepath.Join(s.Path(id), ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	manifest := file(ManifestName, string(b))
	pages, meta, state := file("pages", "memory"), file("pages-meta", "where"), file("state", "the kernel's objects")
	outside := filepath.Join(t.TempDir(), "outside")
	link := func(name string, typ byte, to string) entry {
		return entry{tar.Header{Name: name, Typeflag: typ, Linkname: to}, ""}
	}
	signed := func(change func(m *Manifest)) entry {
		m, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		text, err := m.encode(s.key)
		if err != nil {
			t.Fatal(err)
		}
		return file(ManifestName, string(text))
	}
	for name, archive := range map[string][]byte{
		"empty":                     {},
		"no zstd":                   []byte("hello, hello, hello"),
		"no tar":                    pack(t, []byte(strings.Repeat("hello ", 1000))),
		"no manifest":               made(t, pages, meta, state),
		"manifest last":             made(t, pages, meta, state, manifest),
		"manifest alone":            made(t, manifest),
		"a file too few":            made(t, manifest, pages, meta),
		"a file too many":           made(t, manifest, pages, meta, state, file("x", "y")),
		"a file twice":              made(t, manifest, pages, pages, meta, state),
		"another order":             made(t, manifest, state, pages, meta),
		"another content":           made(t, manifest, file("pages", "Memory"), meta, state),
		"a longer file":             made(t, manifest, file("pages", "memory and more"), meta, state),
		"dots":                      made(t, manifest, file("../pages", "memory"), meta, state),
		"absolute":                  made(t, manifest, file(outside, "memory"), meta, state),
		"a symbolic link":           made(t, manifest, link("pages", tar.TypeSymlink, outside), meta, state),
		"a hard link":               made(t, manifest, link("pages", tar.TypeLink, "/etc/passwd"), meta, state),
		"a device":                  made(t, manifest, link("pages", tar.TypeBlock, ""), meta, state),
		"a directory first":         made(t, link("d/", tar.TypeDir, ""), manifest, pages, meta, state),
		"a manifest that is a link": made(t, link(ManifestName, tar.TypeSymlink, "/etc/passwd"), pages, meta, state),
		"a huge manifest":           made(t, file(ManifestName, strings.Repeat(" ", maxManifest+1)), pages, meta, state),
		"a manifest of nobody":      made(t, file(ManifestName, strings.Replace(string(b), `"user":"user"`, `"user":"root"`, 1)), pages, meta, state),
		"signed dots":               made(t, signed(func(m *Manifest) { m.Files[0].Name = "../x" }), file("../x", "memory"), meta, state),
		"signed names of ours":      made(t, signed(func(m *Manifest) { m.Files[0].Name = namesName }), file(namesName, "memory"), meta, state),
		"signed twice the same":     made(t, signed(func(m *Manifest) { m.Files[1] = m.Files[0] }), pages, pages, state),
		"a signed path for an ID":   made(t, signed(func(m *Manifest) { m.Sandbox = "../../../../../x" }), pages, meta, state),
		"more than there can be":    made(t, signed(func(m *Manifest) { m.Files[0].Size = 1 << 62 }), pages, meta, state),
		"a size below zero":         made(t, signed(func(m *Manifest) { m.Files[0].Size = -1 }), pages, meta, state),
		"a limit below zero":        made(t, signed(func(m *Manifest) { m.Limits.MemoryBytes = -1 }), pages, meta, state),
		"a limit beyond all":        made(t, signed(func(m *Manifest) { m.Limits.CPUs = 1e300 }), pages, meta, state),
		"the last generation":       made(t, signed(func(m *Manifest) { m.Generation = 1<<64 - 1 }), pages, meta, state),
		"an environment of no form": made(t, signed(func(m *Manifest) { m.Env = map[string]string{"A=B": "C"} }), pages, meta, state),
		"a directory of nowhere":    made(t, signed(func(m *Manifest) { m.Dir = "x" }), pages, meta, state),
		"a thousand files":          made(t, signed(func(m *Manifest) { m.Files = make([]File, 1000) }), pages, meta, state),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, s.key, archive); sandbox.KindOf(err) != sandbox.Invalid {
				t.Errorf("got %v, want invalid", err)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Error("a file was made outside of the store")
			}
		})
	}
	// What is larger than the disk is refused before anything is written.
	big := made(t, signed(func(m *Manifest) { m.Files[0].Size = maxImage - 1<<20 }), pages, meta, state)
	if _, err := load(t, s.key, big); sandbox.KindOf(err) != sandbox.ResourceExhausted {
		t.Errorf("got %v, want that the disk is too small", err)
	}
	if _, err := load(t, s.key, made(t, manifest, pages, meta, state)); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// A frame of a few bytes that unpacks to very many takes neither memory nor disk.
func TestArchiveBomb(t *testing.T) {
	s, _ := saved(t)
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	zero := make([]byte, 1<<20)
	for range 256 {
		if _, err := z.Write(zero); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, s.key, b.Bytes()); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v, want invalid", err)
	}
}

func FuzzArchive(f *testing.F) {
	s, id := saved(f)
	f.Add(unpack(f, archiveOf(f, s, id)))
	f.Fuzz(func(t *testing.T, plain []byte) {
		if m, err := load(t, s.key, pack(t, plain)); err == nil && m.ID() != id {
			t.Fatalf("this is no image of ours: %+v", m)
		}
	})
}
