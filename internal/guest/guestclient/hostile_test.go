package guestclient_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// serve returns a client of a guest that answers every request with h.
func serve(t *testing.T, h http.HandlerFunc) *guestclient.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return guestclient.New(s.Client().Transport, s.URL, 7)
}

func TestHostileAnswers(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	tests := []struct {
		name   string
		status int
		body   string
		kind   sandbox.Kind
	}{
		{"no error", 500, "", sandbox.Internal},
		{"not JSON", 404, "<html>", sandbox.Internal},
		{"null error", 404, `{"error":null}`, sandbox.Internal},
		{"a kind of its own", 400, `{"error":{"kind":"root","message":"m"}}`, sandbox.Internal},
		{"an honest error", 404, `{"error":{"kind":"not_found","message":"m","field":"path","value":"v"}}`, sandbox.NotFound},
		{"long texts", 400, fmt.Sprintf(`{"error":{"kind":"invalid","message":%q,"field":%q,"value":%q}}`, long[:9999], long[:9999], long[:9999]), sandbox.Invalid},
		{"endless error", 400, `{"error":{"kind":"invalid","message":"` + strings.Repeat(long, 4), sandbox.Internal},
		{"endless answer", 200, strings.Repeat(long, 40), sandbox.ResourceExhausted},
		{"wrong JSON", 200, `{"pid":"x"}`, sandbox.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get(wire.HeaderGeneration); got != "7" {
					t.Errorf("got generation %q", got)
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			})
			_, err := c.Process(t.Context(), "p")
			if sandbox.KindOf(err) != tt.kind {
				t.Errorf("got %v (%s), want %s", err, sandbox.KindOf(err), tt.kind)
			}
			var e *sandbox.Error
			if errors.As(err, &e) && len(e.Message)+len(e.Field)+len(e.Value)+len(e.Hint) > 2048 {
				t.Errorf("the guest's texts were taken whole: %d bytes", len(e.Error()))
			}
		})
	}
}

func TestHostileOutput(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ack") {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		var b [wire.HeaderLen]byte
		wire.Frame{Type: wire.FrameData, Stream: wire.Stdout, Len: 3, Offset: 100}.Put(b[:])
		w.Write(append(b[:], "abc"...))
	})
	o, err := c.Attach(t.Context(), "p", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if _, err := o.Next(); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("bytes from the wrong offset: got %v", err)
	}
	if _, err := c.Stat(t.Context(), strings.Repeat("x", 5000), ""); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("a path that is too long: got %v", err)
	}
}
