package guest_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// numbers is what seq writes from 1 to n.
func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// TestReattach takes the output in many pieces, each over a new attachment.
func TestReattach(t *testing.T) {
	b := newBox(t, options{})
	const n = 400_000 // more than the pipe and the window hold
	p := b.begin(wire.Start{Argv: []string{"seq", fmt.Sprint(n)}})
	var got strings.Builder
	var off int64
	for done := false; !done; {
		ctx, cancel := context.WithCancel(t.Context())
		o, err := b.Attach(ctx, p.ID, off, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e, err := o.Next()
			if err != nil {
				t.Fatalf("at %d: %v", off, err)
			}
			if e.Lost > 0 {
				t.Fatalf("%d bytes lost at %d", e.Lost, e.Offset)
			}
			got.Write(e.Data)
			if done = e.Exit != nil; done {
				break
			}
		}
		off, _ = o.Offsets()
		cancel()
		o.Close()
	}
	if got.String() != numbers(n) {
		t.Errorf("got %d bytes, want %d", got.Len(), len(numbers(n)))
	}
}

// TestBackpressure shows that a program is held back at the window.
func TestBackpressure(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: []string{"cat", "/dev/zero"}})
	raw := attachRaw(t, b, p.ID) // never acknowledges
	var settled wire.Process
	waitFor(t, "the program to be held back", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		same := st.Stdout.Written == settled.Stdout.Written && st.Stdout.Written > 1<<20
		settled = st
		return same
	})
	if settled.Stdout.Written > 10<<20 || settled.Stdout.Dropped != 0 {
		t.Errorf("written %d, dropped %d", settled.Stdout.Written, settled.Stdout.Dropped)
	}
	if err := b.Ack(t.Context(), p.ID, wire.Ack{Stdout: settled.Stdout.Written}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the program to go on", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		return err == nil && st.Stdout.Written > settled.Stdout.Written
	})
	raw()
}

// attachRaw attaches a reader that reads and discards but does not
// acknowledge.
func attachRaw(t *testing.T, b *box, id string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	quiet := guestclient.New(noAcks{b.host}, "http://guest", b.hi.Generation)
	o, err := quiet.Attach(ctx, id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if _, err := o.Next(); err != nil {
				return
			}
		}
	})
	return func() { cancel(); wg.Wait(); o.Close() }
}

func TestGap(t *testing.T) {
	b := newBox(t, options{cfg: graceless(), hello: func(h *wire.Hello) { h.Limits.OutputBytes = 64 << 10 }})
	p := b.begin(wire.Start{Argv: sh("seq 200000; echo e >&2")})
	waitFor(t, "the end", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		return err == nil && st.Exit != nil && st.Stderr.Written == 2
	})
	r := b.read(p.ID)
	want := numbers(200_000)
	if r.lost == 0 || int(r.lost)+len(r.stdout) != len(want) || !strings.HasSuffix(want, r.stdout) || r.stderr != "e\n" {
		t.Errorf("lost %d, got %d of %d bytes", r.lost, len(r.stdout), len(want))
	}
	if len(r.stdout) > 64<<10 || len(r.stdout) < 32<<10 {
		t.Errorf("kept %d bytes", len(r.stdout))
	}
	m, err := b.Metrics(t.Context())
	if err != nil || m.LimitHits[sandbox.LimitOutput] != 1 {
		t.Errorf("got hits %v, %v", m.LimitHits, err)
	}
}

func TestSeveralReaders(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: sh("read x; seq 50000"), Stdin: true})
	texts := make(chan string)
	for range 3 {
		o, err := b.Attach(t.Context(), p.ID, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer o.Close()
			var out bytesWriter
			_, lost, err := o.CopyTo(&out, io.Discard)
			if err != nil || lost != 0 {
				t.Errorf("lost %d, %v", lost, err)
			}
			texts <- string(out)
		}()
	}
	if _, err := b.Stdin(t.Context(), p.ID, 0, strings.NewReader("go\n"), true); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := <-texts; got != numbers(50_000) {
			t.Errorf("a reader got %d bytes", len(got))
		}
	}
}

func TestAttachErrors(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: []string{"sleep", "60"}})
	if _, err := b.Attach(t.Context(), p.ID, 5, 0); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("beyond the end: got %v", err)
	}
	if _, err := b.Attach(t.Context(), "nobody", 0, 0); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("no such process: got %v", err)
	}
}

// TestForget kills a process under a reader.
func TestForget(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: sh("echo hello; exec sleep 60")})
	o, err := b.Attach(t.Context(), p.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if e, err := o.Next(); err != nil || string(e.Data) != "hello\n" {
		t.Fatalf("got %q, %v", e.Data, err)
	}
	begin := time.Now()
	if err := b.Kill(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	exit, _, err := o.CopyTo(io.Discard, io.Discard)
	if err != nil || exit.Signal != 9 {
		t.Errorf("got %+v, %v", exit, err)
	}
	if took := time.Since(begin); took > 2*slowdown*time.Second {
		t.Errorf("took %v", took)
	}
}
