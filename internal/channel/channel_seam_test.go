package channel_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/sandbox"
)

func newSeam() []byte {
	b := make([]byte, channel.SeamLen)
	rand.Read(b)
	return b
}

// seamed serves what a guest does: requests, and one that tells of a seam.
func seamed() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/seam":
			seam, _ := io.ReadAll(r.Body)
			if !channel.ExpectSeam(r.Context(), seam) {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/hang":
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			io.Copy(w, r.Body)
		}
	})
}

func echo(t *testing.T, h *channel.Host, n int) {
	t.Helper()
	data := noise(n)
	resp, err := h.RoundTrip(request(t, "POST", "/echo", bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
}

// TestSeam: HTTP/2 ends and begins again on one connection, many times, with
// requests under way or not.
func TestSeam(t *testing.T) {
	hc, gc := pair(t)
	served := make(chan error, 1)
	go func() { served <- channel.ServeGuest(t.Context(), gc, seamed()) }()
	for round := range 30 {
		h, err := channel.DialHost(hc, channel.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		echo(t, h, 100)
		echo(t, h, 1<<20)
		var hung *http.Response
		if round%2 == 1 {
			if hung, err = h.RoundTrip(request(t, "GET", "/hang", nil)); err != nil {
				t.Fatal(err)
			}
		}
		seam := newSeam()
		resp, err := h.RoundTrip(request(t, "POST", "/seam", bytes.NewReader(seam)))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		resp.Body.Close()
		if hc, err = h.Split(t.Context(), seam); err != nil {
			t.Fatal(err)
		}
		if err := h.Fault(); err != nil || !h.Kept() {
			t.Errorf("fault %v, kept %v", err, h.Kept())
		}
		<-h.Done()
		if hung != nil {
			if _, err := io.ReadAll(hung.Body); err == nil {
				t.Error("an answer that was under way seems whole")
			}
			hung.Body.Close()
		}
		if _, err := h.RoundTrip(request(t, "GET", "/echo", nil)); err == nil {
			t.Error("a request was served after the end")
		}
	}
	hc.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestSeamRefused: a guest that does not play along costs its own channel only,
// and in time.
func TestSeamRefused(t *testing.T) {
	t.Run("it sends no seam", func(t *testing.T) {
		h := down(t, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := h.Split(ctx, newSeam())
		if sandbox.KindOf(err) != sandbox.DeadlineExceeded && sandbox.KindOf(err) != sandbox.Unavailable {
			t.Errorf("%v", err)
		}
	})
	t.Run("it sends for ever", func(t *testing.T) {
		hc, gc := pair(t)
		h, err := channel.DialHost(hc, channel.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			go io.Copy(io.Discard, gc)
			for {
				if _, err := gc.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}()
		if _, err := h.Split(t.Context(), newSeam()); err == nil {
			t.Error("no error")
		}
	})
	t.Run("it goes", func(t *testing.T) {
		hc, gc := pair(t)
		h, err := channel.DialHost(hc, channel.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		gc.Close()
		if _, err := h.Split(t.Context(), newSeam()); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a wrong length", func(t *testing.T) {
		h := down(t, channel.Limits{}, seamed())
		if _, err := h.Split(t.Context(), []byte("short")); err == nil {
			t.Error("no error")
		}
		if channel.ExpectSeam(t.Context(), newSeam()) {
			t.Error("a seam without a connection")
		}
	})
}
