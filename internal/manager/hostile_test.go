package manager

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// hostile is a keeper whose guest answers as a test says.
type hostile struct {
	status int
	body   func() io.Reader
}

func (hostile) Name() string     { return "k" }
func (hostile) Instance() string { return "i" }
func (hostile) Alive() bool      { return true }
func (hostile) SendFiles(context.Context, []*os.File) (string, error) {
	return "", sandbox.Errorf(sandbox.Unavailable, "no")
}
func (hostile) Create(context.Context, *wire.Create) (*wire.Created, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no")
}
func (hostile) Claim(context.Context, sandbox.ID, *wire.Claim) (*wire.Created, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no")
}
func (hostile) List(context.Context) ([]wire.Status, error) { return nil, nil }
func (hostile) Wait(ctx context.Context, _ sandbox.ID) (wire.Status, error) {
	<-ctx.Done()
	return wire.Status{}, ctx.Err()
}
func (hostile) Stats(context.Context, sandbox.ID) (sandbox.Stats, error) {
	return sandbox.Stats{}, nil
}
func (hostile) Delete(context.Context, sandbox.ID) (wire.Status, error) { return wire.Status{}, nil }
func (hostile) Changes(context.Context, sandbox.ID) (io.ReadCloser, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "hostile")
}

func (hostile) Checkpoint(context.Context, sandbox.ID, wire.Checkpoint) (*wire.Checkpointed, error) {
	return nil, sandbox.Errorf(sandbox.Unavailable, "no")
}
func (h hostile) Guest(sandbox.ID, uint64) http.RoundTripper { return h }

// RoundTrip answers every request alike.
func (h hostile) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: h.status, Header: http.Header{}, ContentLength: -1, Request: r,
		Body: io.NopCloser(h.body()),
	}, nil
}

// endless repeats a text for ever and counts what was taken of it.
type endless struct {
	text string
	n    int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	e.n += int64(n)
	return n, nil
}

func text(s string) func() io.Reader { return func() io.Reader { return strings.NewReader(s) } }

// Whatever a guest answers, the caller gets an error of ours and the manager
// reads no more than it must.
func TestHostileAnswers(t *testing.T) {
	flood := &endless{text: `{"a":"b"},`}
	for _, tt := range []struct {
		name string
		k    hostile
		want sandbox.Kind
	}{
		{"nothing", hostile{200, text("")}, sandbox.Internal},
		{"no JSON", hostile{200, text("hello")}, sandbox.Internal},
		{"another shape", hostile{200, text("[1,2]")}, sandbox.Internal},
		{"another process", hostile{200, text(`{"id":"other"}`)}, sandbox.Internal},
		{"no end", hostile{200, func() io.Reader { return io.MultiReader(strings.NewReader("["), flood) }}, sandbox.Internal},
		{"an error without a word", hostile{500, text("")}, sandbox.Internal},
		{"an error of no kind", hostile{400, text(`{"error":{"kind":"root","message":"x"}}`)}, sandbox.Internal},
		{"an endless error", hostile{400, func() io.Reader { return &endless{text: "x"} }}, sandbox.Internal},
		{"an honest error", hostile{404, text(`{"error":{"kind":"not_found","message":"no such process"}}`)}, sandbox.NotFound},
		{"a long error", hostile{409, text(`{"error":{"kind":"conflict","message":"` + strings.Repeat("x", 10_000) + "\xff" + `"}}`)}, sandbox.Conflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close(t.Context())
			e := m.newEntry(Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.Running, Generation: 1}})
			close(e.created)
			e.keeper = tt.k
			m.byID[e.id] = e
			_, err = m.Process(t.Context(), string(e.id), "p1")
			if got := sandbox.AsError(err); got.Kind != tt.want || len(got.Message) > 2000 {
				t.Errorf("got %v (%d bytes), want %v", got, len(got.Message), tt.want)
			}
			if _, err := m.Output(t.Context(), string(e.id), "p1", 0, 0); tt.k.status >= 400 && err == nil {
				t.Error("an answer with an error was taken for output")
			}
		})
	}
	if flood.n > 2*maxReply {
		t.Errorf("%d bytes of an endless answer were read", flood.n)
	}
}

// Counts that a guest makes up become no events but of limits that are ours.
func TestHostileMetrics(t *testing.T) {
	m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	e := m.newEntry(Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.Dead}})
	for range 3 {
		m.noteHits(e, guest.Metrics{LimitHits: map[sandbox.LimitName]int64{
			"bogus": 5, sandbox.LimitProcesses: 7, sandbox.LimitDisk: -3, sandbox.LimitOutput: 1 << 62,
		}})
	}
	if len(e.events) != 1 || e.events[0].Limit != sandbox.LimitProcesses {
		t.Errorf("got %v, want one event of processes", e.events)
	}
}
