package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// ForeignSnapshot returns a snapshot of the given files, as another installation
// would export it: everything about it is well formed, and nothing in it is
// vouched for.
func ForeignSnapshot(t testing.TB, kind sandbox.SnapshotKind, files map[string][]byte) []byte {
	t.Helper()
	s := image.New(t.TempDir(), image.NewKey())
	m := &image.Manifest{
		Version: image.Version, Kind: kind, Sandbox: sandbox.NewID(), Snapshot: sandbox.NewID(), Generation: 1,
		Boundary: sandbox.GVisor, Template: image.Template{Name: sandbox.DefaultTemplate},
		User: "user", Hostname: "box", SavedAt: time.Now().UTC().Round(0),
	}
	if kind == sandbox.KindDirectory {
		m.Dir = "/home/user/d"
	}
	dir, err := s.Begin(m.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err = s.Seal(m)
	if err == nil {
		err = s.Publish(m.Snapshot)
	}
	var out bytes.Buffer
	if err == nil {
		err = s.WriteArchive(t.Context(), &out, m.Snapshot)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
