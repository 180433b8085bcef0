package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

type record struct {
	ID   sandbox.ID `json:"id"`
	Note string     `json:"note"`
}

func open(t *testing.T, path string) *Store[record] {
	t.Helper()
	s, err := Open(t.Context(), path, func(r *record) sandbox.ID { return r.ID })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestJournal(t *testing.T) {
	// A path with what a URL would take for its own.
	path := filepath.Join(t.TempDir(), "a b?c#d%41.db")
	s := open(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the journal's mode: got %v, %v, want 0600", info, err)
	}
	id, other := sandbox.NewID(), sandbox.NewID()
	for i := range 3 {
		ev := sandbox.Event{Seq: int64(i + 1), Message: fmt.Sprint("event ", i)}
		if err := s.Put(t.Context(), &record{ID: id, Note: fmt.Sprint("note ", i)}, ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(t.Context(), &record{ID: other}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, path)
	got, err := s.Load(t.Context())
	if err != nil || len(got) != 2 || got[0] != (record{id, "note 2"}) {
		t.Errorf("Load: got %v, %v", got, err)
	}
	events, err := s.Events(t.Context(), id)
	if err != nil || len(events) != 3 || events[2].Message != "event 2" {
		t.Errorf("Events: got %v, %v", events, err)
	}
	if err := s.Forget(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if events, err := s.Events(t.Context(), id); err != nil || len(events) != 0 {
		t.Errorf("events after Forget: got %v, %v, want none", events, err)
	}
}

func TestOldEventsGo(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "j.db"))
	id := sandbox.NewID()
	events := make([]sandbox.Event, MaxEvents+10)
	for i := range events {
		events[i].Seq = int64(i + 1)
	}
	if err := s.Put(t.Context(), &record{ID: id}, events...); err != nil {
		t.Fatal(err)
	}
	got, err := s.Events(t.Context(), id)
	if err != nil || len(got) != MaxEvents || got[0].Seq != 11 {
		t.Errorf("got %d events, %v, want %d from 11 on", len(got), err, MaxEvents)
	}
}

func TestConcurrentWrites(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "j.db"))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := s.Put(context.WithoutCancel(t.Context()), &record{ID: sandbox.NewID()}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := s.Load(t.Context()); err != nil || len(got) != 50 {
		t.Errorf("got %d records, %v, want 50", len(got), err)
	}
}

func TestRefused(t *testing.T) {
	newer := filepath.Join(t.TempDir(), "newer.db")
	s := open(t, newer)
	if _, err := s.db.ExecContext(t.Context(), "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, []byte("this is no database, and it is longer than a header of one is"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path string
		want       sandbox.Kind
	}{
		{"newer schema", newer, sandbox.Unsupported},
		{"no database", garbage, sandbox.Internal},
		{"no directory", "/nonexistent/j.db", sandbox.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(t.Context(), tt.path, func(r *record) sandbox.ID { return r.ID })
			if got := sandbox.KindOf(err); got != tt.want {
				t.Errorf("got %v (%v), want %v", got, err, tt.want)
			}
		})
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "j.db"), func(r *record) sandbox.ID { return r.ID })
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	id := sandbox.NewID()
	for i := range b.N {
		if err := s.Put(b.Context(), &record{ID: id}, sandbox.Event{Seq: int64(i)}); err != nil {
			b.Fatal(err)
		}
	}
}
