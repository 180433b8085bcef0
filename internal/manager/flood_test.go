package manager

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// running returns a manager with one running sandbox on k.
func running(t *testing.T, k Keeper) (*Manager, *entry) {
	t.Helper()
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(t.Context()) })
	e := m.newEntry(Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.Running, Generation: 1}})
	close(e.created)
	e.keeper = k
	m.byID[e.id] = e
	return m, e
}

// A guest that sends gaps without end costs no goroutine and no event each.
func TestGapFlood(t *testing.T) {
	const gaps = 200_000
	gap := frame(guest.Frame{Type: guest.FrameGap, Stream: guest.Stdout}, "\x00\x00\x00\x00\x00\x00\x00\x02")
	none := frame(guest.Frame{Type: guest.FrameGap, Stream: guest.Stdout}, "\x00\x00\x00\x00\x00\x00\x00\x00")
	data := frame(guest.Frame{Type: guest.FrameData, Stream: guest.Stdout}, "x")
	empty := frame(guest.Frame{Type: guest.FrameData, Stream: guest.Stdout}, "")
	for _, tt := range []struct {
		name  string
		in    []byte
		fails bool
	}{
		{"in a row", gap, true},
		{"of nothing", none, true},
		{"with empty data between", join2(gap, empty), true},
		{"with data between", join2(gap, data), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := bytes.Repeat(tt.in, gaps)
			if !tt.fails {
				in = append(in, exitFrame(sandbox.Exit{})...)
			}
			m, e := running(t, hostile{200, func() io.Reader { return bytes.NewReader(in) }})
			before, most := runtime.NumGoroutine(), 0
			body, err := m.Output(t.Context(), string(e.id), "p1", 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 32<<10)
			for err == nil {
				_, err = body.Read(buf)
				most = max(most, runtime.NumGoroutine())
			}
			body.Close()
			if failed := sandbox.KindOf(err) == sandbox.Internal && err != io.EOF; failed != tt.fails {
				t.Errorf("got %v, want failure %v", err, tt.fails)
			}
			if most > before+10 {
				t.Errorf("%d goroutines, %d before", most, before)
			}
			m.Close(t.Context())
			e.mu.Lock()
			defer e.mu.Unlock()
			lost := 0
			for _, ev := range e.events {
				if ev.Limit == sandbox.LimitOutput {
					lost++
				}
			}
			if lost > 50 || !tt.fails && lost == 0 {
				t.Errorf("%d events of lost output", lost)
			}
			if len(e.lost) > 0 {
				t.Errorf("not noted: %v", e.lost)
			}
		})
	}
}
