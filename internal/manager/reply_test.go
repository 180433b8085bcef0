package manager

import (
	"io"
	"runtime"
	"strings"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// A list whose text is small and whose values are large costs a bounded
// amount of memory and ends in an error.
func TestHostileLists(t *testing.T) {
	bomb := func(one string, n int) func() io.Reader {
		return func() io.Reader { return strings.NewReader("[" + strings.Repeat(one+",", n-1) + one + "]") }
	}
	for _, tt := range []struct {
		name string
		body func() io.Reader
		want int // -1: an error
	}{
		{"empty", text("[]"), 0},
		{"null", text("null\n"), 0},
		{"two", text(`[{"name":"a","type":"file"},{"name":"b","type":"file"}]` + "\n"), 2},
		{"the most", bomb(`{"type":"file"}`, MaxEntries), MaxEntries},
		{"one more", bomb(`{"type":"file"}`, MaxEntries+1), -1},
		{"a bomb", bomb("{}", 5_500_000), -1},
		{"a bomb in one", text(`[{"meta":{` + strings.Repeat(`"":"",`, 200_000) + `"":""}}]`), -1},
		{"no list", text(`{"a":1}`), -1},
		{"no end", text(`[{}`), -1},
		{"two lists", text(`[{}][{}]`), -1},
		{"white space for ever", func() io.Reader { return io.MultiReader(strings.NewReader("["), &endless{text: " "}) }, -1},
		{"no end of one", func() io.Reader { return io.MultiReader(strings.NewReader(`["`), &endless{text: "x"}) }, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, e := running(t, hostile{200, tt.body})
			g, err := m.guest(e)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out, err := List[guest.Entry](t.Context(), g, "/dir", nil, MaxEntries)
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 {
				t.Errorf("%d MiB were allocated", used>>20)
			}
			switch {
			case tt.want < 0 && sandbox.KindOf(err) != sandbox.Internal:
				t.Errorf("got %d values, %v, want the error of a bad guest", len(out), err)
			case tt.want >= 0 && (err != nil || len(out) != tt.want || out == nil):
				t.Errorf("got %d values, %v, want %d", len(out), err, tt.want)
			}
			if _, err := m.Processes(t.Context(), string(e.id)); (err != nil) != (tt.want < 0 || tt.want > maxProcesses) {
				t.Errorf("processes: %v", err)
			}
		})
	}
}

// Answers that say little are short.
func TestHostileSizes(t *testing.T) {
	long := `{"id":"p1","offset":1,"limit_hits":{"bogus":5,"disk":1},"x":"` + strings.Repeat("x", maxSmall) + `"}`
	m, e := running(t, hostile{200, text(long)})
	ref := string(e.id)
	if err := m.Ack(t.Context(), ref, "p1", guest.Ack{}); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("ack: got %v", err)
	}
	if _, err := m.metrics(t.Context(), e); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("metrics: got %v", err)
	}
	if _, err := m.Process(t.Context(), ref, "p1"); err != nil {
		t.Errorf("a process of %d bytes: %v", len(long), err)
	}
	e.keeper = hostile{200, text(`{"id":"p1","argv":[` + strings.Repeat(`"",`, 1<<20) + `""]}`)}
	if _, err := m.Process(t.Context(), ref, "p1"); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("arguments: got %v", err)
	}
	e.keeper = hostile{200, text(`{"limit_hits":{"bogus":5,"disk":1}}`)}
	mt, err := m.metrics(t.Context(), e)
	if err != nil || len(mt.LimitHits) != 1 || mt.LimitHits[sandbox.LimitDisk] != 1 {
		t.Errorf("metrics: got %v, %v", mt, err)
	}
}
