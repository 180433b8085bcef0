package guest_test

import (
	"context"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// exitOf waits until a process has exited, without reading its output.
func (b *box) exitOf(id string) sandbox.Exit {
	b.t.Helper()
	for end := time.Now().Add(20 * slowdown * time.Second); ; {
		p, err := b.Process(b.t.Context(), id)
		if err != nil {
			b.t.Fatalf("process: %v", err)
		}
		if p.Exit != nil {
			return *p.Exit
		}
		if time.Now().After(end) {
			b.t.Fatal("the process lives")
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestLease(t *testing.T) {
	const lease = 400 * time.Millisecond
	b := newBox(t, options{})
	attach := func(id string) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		o, err := b.Attach(ctx, id, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return func() { cancel(); o.Close() }
	}

	t.Run("nobody comes", func(t *testing.T) {
		p := b.begin(wire.Start{Argv: sh("setsid sleep 7601 & exec sleep 7601"), Lease: lease})
		if x := b.exitOf(p.ID); x.Reason != sandbox.ReasonOrphaned || x.Signal != 9 {
			t.Errorf("got %+v", x)
		}
	})
	t.Run("the reader leaves", func(t *testing.T) {
		p := b.begin(wire.Start{Argv: []string{"sleep", "60"}, Lease: lease, KeepTree: true})
		attach(p.ID)()
		if x := b.exitOf(p.ID); x.Reason != sandbox.ReasonOrphaned {
			t.Errorf("got %+v", x)
		}
	})
	t.Run("it comes back", func(t *testing.T) {
		p := b.begin(wire.Start{Argv: []string{"sleep", "60"}, Lease: lease})
		for range 3 {
			leave := attach(p.ID)
			<-time.After(lease / 2) // attached: nothing counts
			leave()
			<-time.After(lease / 4) // within the lease
		}
		leave := attach(p.ID)
		<-time.After(3 * lease)
		if q, err := b.Process(t.Context(), p.ID); err != nil || q.Exit != nil || q.Lease != lease {
			t.Errorf("under a reader: got %+v, %v", q, err)
		}
		leave()
		if x := b.exitOf(p.ID); x.Reason != sandbox.ReasonOrphaned {
			t.Errorf("got %+v", x)
		}
	})
	t.Run("none asked for", func(t *testing.T) {
		p := b.begin(wire.Start{Argv: sh("sleep 1; exit 3")})
		attach(p.ID)()
		if x := b.exitOf(p.ID); x.Code != 3 || x.Reason != "" {
			t.Errorf("got %+v", x)
		}
	})
	t.Run("it ends first", func(t *testing.T) {
		p := b.begin(wire.Start{Argv: sh("exit 4"), Lease: time.Minute})
		if x := b.exitOf(p.ID); x.Code != 4 || x.Reason != "" {
			t.Errorf("got %+v", x)
		}
	})
}
