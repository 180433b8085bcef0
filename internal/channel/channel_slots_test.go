package channel_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestAnswersLeftUnread: answers that nobody reads are given up, as many as
// needed, for a request that waits for a stream and for one whose answer waits
// for room.
func TestAnswersLeftUnread(t *testing.T) {
	for name, l := range map[string]channel.Limits{
		"streams": {Streams: 8, BufferedBytes: 4 << 20, StreamBytes: 1 << 20, ReadTime: 50 * time.Millisecond},
		"buffers": {Streams: 64, BufferedBytes: 4 << 20, StreamBytes: 1 << 20, ReadTime: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			big := make([]byte, 8<<20)
			h := down(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/big" {
					w.Write(big)
					return
				}
				io.WriteString(w, "small")
			}))
			for range 8 {
				resp, err := h.RoundTrip(request(t, "GET", "/big", nil))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			resp, err := h.RoundTrip(request(t, "GET", "/small", nil).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "small" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}

// TestNoStream: a request for which no stream becomes free ends with a reason.
func TestNoStream(t *testing.T) {
	if testing.Short() {
		t.Skip("probe: -short was asked for, and this waits for 10 s")
	}
	h := down(t, channel.Limits{Streams: 2}, seamed())
	for range 2 {
		resp, err := h.RoundTrip(request(t, "GET", "/hang", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		go io.Copy(io.Discard, resp.Body) // it is read, so it is nobody's to give up
	}
	if _, err := h.RoundTrip(request(t, "GET", "/echo", nil)); sandbox.KindOf(err) != sandbox.ResourceExhausted {
		t.Errorf("%v", err)
	}
}
