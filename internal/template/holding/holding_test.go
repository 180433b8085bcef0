package holding

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

// pool has one keeper whose create fails as it is told.
type pool struct {
	manager.Keepers
	one *fakeKeeper
}

func (p pool) Acquire(context.Context, func(string) int) (manager.Keeper, error) { return p.one, nil }
func (p pool) Adopt(context.Context) ([]manager.Keeper, error) {
	return []manager.Keeper{p.one}, nil
}

type fakeKeeper struct {
	manager.Keeper
	create, remove error
}

func (*fakeKeeper) Name() string { return "k1" }
func (k *fakeKeeper) Create(context.Context, *wire.Create) (*wire.Created, error) {
	return nil, k.create
}
func (k *fakeKeeper) Delete(context.Context, sandbox.ID) (wire.Status, error) {
	return wire.Status{}, k.remove
}

func TestHolds(t *testing.T) {
	ctx := t.Context()
	s := template.New(filepath.Join(t.TempDir(), "templates"), template.Options{})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "bin", Mode: 0o755})
	w.Close()
	if _, err := s.ImportStream(ctx, "a", &b, template.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "k1"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "k1", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := lifelock.Take(lock); err != nil {
		t.Fatal(err)
	}
	if _, err := Templates(s).Resolve(ctx, "a", "nobody\n"); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v for an unknown user, want invalid", err)
	}
	res, err := Templates(s).Resolve(ctx, "a", "root")
	if err != nil || res.User.UID != 0 {
		t.Fatalf("got %+v, %v", res, err)
	}
	fake := &fakeKeeper{}
	k, err := Keepers(pool{one: fake}, s, dir).Acquire(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := Keepers(pool{one: fake}, s, dir).Adopt(ctx)
	if err != nil || len(adopted) != 1 {
		t.Fatalf("got %v, %v", adopted, err)
	}
	req := &wire.Create{ID: sandbox.NewID(), Root: res.Root}
	steps := []struct {
		name string
		do   func() error
		kind sandbox.Kind // of removing the template afterwards
	}{
		{"create", func() error { _, err := k.Create(ctx, req); return err }, sandbox.Conflict},
		{"delete that fails", func() error { fake.remove = os.ErrDeadlineExceeded; _, _ = k.Delete(ctx, req.ID); return nil }, sandbox.Conflict},
		{"delete by the next manager", func() error { fake.remove = nil; _, err := adopted[0].Delete(ctx, req.ID); return err }, ""},
	}
	for _, st := range steps {
		if err := st.do(); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		err := s.Remove(ctx, "a")
		if sandbox.KindOf(err) != st.kind {
			t.Errorf("after %s: removing gives %v, want kind %q", st.name, err, st.kind)
		}
	}
	if _, err := k.Create(ctx, req); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("a create from what was removed gives %v, want not_found", err)
	}
}
