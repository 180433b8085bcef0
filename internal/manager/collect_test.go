package manager

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/store"
	"github.com/belljar-sh/belljar/sandbox"
)

// nobody is a host without keepers.
type nobody struct{}

func (nobody) Acquire(context.Context, func(string) int) (Keeper, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no keeper")
}
func (nobody) Adopt(context.Context) ([]Keeper, error)          { return nil, nil }
func (nobody) Reap(context.Context, string) error               { return nil }
func (nobody) Probe(context.Context) ([]driver.Report, error)   { return nil, nil }
func (nobody) Close(context.Context) error                      { return nil }
func (nobody) List(context.Context) ([]sandbox.Template, error) { return nil, nil }
func (nobody) Resolve(context.Context, string, string) (Resolved, error) {
	return Resolved{}, sandbox.Errorf(sandbox.NotFound, "no template")
}

func openStore(t *testing.T) *store.Store[Record] {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "j.db"), func(r *Record) sandbox.ID { return r.Sandbox.ID })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What a daemon finds of dead ones: the old and the many go, with their logs.
func TestCollect(t *testing.T) {
	s, logs := openStore(t), t.TempDir()
	now := time.Now()
	dead := func(age time.Duration) sandbox.ID {
		r := Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.Dead, Name: "n", EndedAt: now.Add(-age), CreatedAt: now.Add(-age)}}
		if err := s.Put(t.Context(), &r, sandbox.Event{Seq: 1}); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(logs, string(r.Sandbox.ID), "p"), 0o700); err != nil {
			t.Fatal(err)
		}
		return r.Sandbox.ID
	}
	old, young := dead(deadLife+time.Hour), dead(time.Minute)
	unknown := sandbox.NewID()
	for _, d := range []string{string(unknown), "not-ours"} {
		if err := os.Mkdir(filepath.Join(logs, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const most = 20
	for i := range most {
		dead(time.Hour + time.Duration(i)*time.Second)
	}
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}, Journal: s, LogDir: logs})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	m.maxDead = most
	m.collect()
	if n := len(m.List(true)); n != most {
		t.Errorf("got %d records, want %d", n, most)
	}
	if left, err := s.Load(t.Context()); err != nil || len(left) != most {
		t.Errorf("the journal has %d records, %v, want %d", len(left), err, most)
	}
	if _, err := m.Get(string(young)); err != nil {
		t.Errorf("the youngest: %v", err)
	}
	if _, err := m.Get(string(old)); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("the oldest: got %v, want not_found", err)
	}
	if got, err := m.Get("n"); err != nil || got.ID != young {
		t.Errorf("by name: got %v, %v, want the last that had it", got.ID, err)
	}
	for id, want := range map[string]bool{string(old): false, string(young): true, string(unknown): false, "not-ours": true} {
		if _, err := os.Stat(filepath.Join(logs, id)); (err == nil) != want {
			t.Errorf("logs of %s: got %v, want kept %v", id, err, want)
		}
	}
}

// Records that nobody keeps come to Dead, whatever state they were in.
func TestLostRecords(t *testing.T) {
	s := openStore(t)
	var ids []sandbox.ID
	for _, st := range []sandbox.State{sandbox.Creating, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Killing} {
		r := Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: st, Name: string(st)}, Keeper: "gone"}
		if err := s.Put(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.Sandbox.ID)
	}
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}, Journal: s})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	for _, id := range ids {
		sb, err := m.Wait(t.Context(), string(id))
		if err != nil || sb.State != sandbox.Dead || sb.EndReason == "" || sb.EndedAt.IsZero() {
			t.Errorf("%s: got %v %q, %v, want dead", sb.Name, sb.State, sb.EndReason, err)
		}
		events, more, err := m.Events(string(id), 0)
		if err != nil || more != nil || len(events) == 0 || events[len(events)-1].State != sandbox.Dead {
			t.Errorf("%s: got events %v, %v", sb.Name, events, err)
		}
	}
}

// A create that fails leaves a dead record and frees the name.
func TestFailedCreate(t *testing.T) {
	s := openStore(t)
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}, Journal: s, Boundaries: []sandbox.Boundary{sandbox.GVisor}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	for range 2 {
		if _, err := m.Create(t.Context(), sandbox.Spec{Name: "a"}, nil); sandbox.KindOf(err) != sandbox.NotFound {
			t.Errorf("got %v, want the template's error before the keeper's", err)
		}
	}
	all := m.List(true)
	if len(all) != 2 || all[0].State != sandbox.Dead || all[0].EndReason != sandbox.EndFailed {
		t.Errorf("got %+v", all)
	}
	if m.Live() != 0 {
		t.Errorf("%d live", m.Live())
	}
}

// A journal that cannot be written fails creates, not what follows them.
func TestJournalFails(t *testing.T) {
	s := openStore(t)
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}, Journal: s, Boundaries: []sandbox.Boundary{sandbox.GVisor}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	s.Close()
	if _, err := m.Create(t.Context(), sandbox.Spec{}, nil); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	if m.Live() != 0 {
		t.Errorf("%d live after a failed create", m.Live())
	}
}
