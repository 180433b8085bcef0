package guest_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest"
	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// noAcks swallows acknowledgements.
type noAcks struct{ rt http.RoundTripper }

func (n noAcks) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/ack") {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
	}
	return n.rt.RoundTrip(r)
}

// graceless lets output go as soon as nobody reads.
func graceless() guest.Config { return guest.Config{ReaderGrace: time.Nanosecond} }

func status(t *testing.T, b *box, method, path, generation string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://guest"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderGeneration, generation)
	resp, err := b.host.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestHello(t *testing.T) {
	b := newBox(t, options{mute: true})
	if got := status(t, b, "GET", "/v1/ping", "1"); got != http.StatusTooEarly {
		t.Errorf("before hello: got %d, want 425", got)
	}
	wrong := []struct {
		name string
		edit func(*wire.Hello)
		kind sandbox.Kind
		says []string
	}{
		{"protocol", func(h *wire.Hello) { h.Protocol = 99 }, sandbox.Unsupported, []string{"99", "protocol 1"}},
		{"build", func(h *wire.Hello) { h.Build = "other-build" }, sandbox.Unsupported, []string{"other-build", b.hi.Build}},
		{"generation", func(h *wire.Hello) { h.Generation = 0 }, sandbox.Conflict, nil},
	}
	for _, tt := range wrong {
		t.Run(tt.name, func(t *testing.T) {
			h := b.hi
			tt.edit(&h)
			_, err := b.Hello(t.Context(), h)
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v, want %s", err, tt.kind)
			}
			for _, s := range tt.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not name %q", err, s)
				}
			}
		})
	}
	h := b.hi
	h.Start = &wire.Start{ID: "first", Argv: sh("echo $X"), Env: map[string]string{"X": "1"}}
	reply, err := b.Hello(t.Context(), h)
	if err != nil || reply.Process == nil || reply.Process.ID != "first" || reply.BootID == "" {
		t.Fatalf("got %+v, %v", reply, err)
	}
	if r := b.read("first"); r.stdout != "1\n" {
		t.Errorf("got %q", r.stdout)
	}
	if again, err := b.Hello(t.Context(), h); err != nil || again.Process.PID != reply.Process.PID {
		t.Errorf("hello again: got %+v, %v", again.Process, err)
	}
	if got := status(t, b, "GET", "/v1/ping", "2"); got != http.StatusConflict {
		t.Errorf("another generation: got %d, want 409", got)
	}
	if got := status(t, b, "GET", "/v1/nonesuch", "1"); got != http.StatusNotFound {
		t.Errorf("unknown route: got %d, want 404", got)
	}
}

func TestHelloStartError(t *testing.T) {
	b := newBox(t, options{mute: true})
	h := b.hi
	h.Start = &wire.Start{ID: "first", Argv: []string{"nonesuch"}}
	reply, err := b.Hello(t.Context(), h)
	if err != nil || reply.Process != nil || sandbox.KindOf(reply.StartError) != sandbox.NotFound {
		t.Errorf("got %+v, %v", reply, err)
	}
}

func TestQuiesce(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: sh("echo a; read x; echo b"), Stdin: true})
	o, err := b.Attach(t.Context(), p.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if e, err := o.Next(); err != nil || string(e.Data) != "a\n" {
		t.Fatalf("got %q, %v", e.Data, err)
	}
	if err := b.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Next(); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("the stream: got %v (%v), want unavailable", err, errors.Unwrap(err))
	}
	if got := status(t, b, "GET", "/v1/ping", "1"); got != http.StatusTooEarly {
		t.Errorf("after quiesce: got %d, want 425", got)
	}
	h := b.hi
	h.Generation = 2
	if _, err := b.Hello(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := b.Ping(t.Context()); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("the old generation: got %v, want a conflict", err)
	}
	next := guestclient.New(b.host, "http://guest", 2)
	if _, err := next.Stdin(t.Context(), p.ID, 0, strings.NewReader("\n"), true); err != nil {
		t.Fatal(err)
	}
	out, _ := o.Offsets()
	again, err := next.Attach(t.Context(), p.ID, out, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var text bytesWriter
	if exit, lost, err := again.CopyTo(&text, &text); err != nil || lost != 0 || exit.Code != 0 || string(text) != "b\n" {
		t.Errorf("got %q, %+v, lost %d, %v", text, exit, lost, err)
	}
}
