package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// trip sends a request through the in-process transport.
func trip(t *testing.T, ctx context.Context, h http.HandlerFunc, method string, body io.Reader) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://belljar/x?y=z", body)
	if err != nil {
		t.Fatal(err)
	}
	return client.InProcess(h).RoundTrip(req)
}

func TestInProcessAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		h      http.HandlerFunc
		status int
		body   string
		length int64
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 200, "", -1},
		{"a status only", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, 204, "", -1},
		{"a body", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Query().Get("y")) }, 200, "z", -1},
		{"a length", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, "ab")
		}, 418, "ab", 2},
		{"an echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }, 200, "hello", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, body := range []io.Reader{strings.NewReader("hello"), struct{ io.Reader }{strings.NewReader("hello")}} {
				resp, err := trip(t, t.Context(), tt.h, http.MethodPost, body)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				if err != nil || string(got) != tt.body || resp.StatusCode != tt.status || resp.ContentLength != tt.length {
					t.Errorf("got %d %q (%d), %v, want %d %q (%d)", resp.StatusCode, got, resp.ContentLength, err, tt.status, tt.body, tt.length)
				}
				resp.Body.Close()
			}
		})
	}
}

// Request and answer flow at the same time.
func TestInProcessFullDuplex(t *testing.T) {
	pr, pw := io.Pipe()
	resp, err := trip(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		io.Copy(w, r.Body)
	}, http.MethodPost, pr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(pw, word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(word))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != word {
			t.Fatalf("got %q, %v, want %q", got, err, word)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Errorf("got %q, %v at the end", rest, err)
	}
}

func TestInProcessCancel(t *testing.T) {
	ended := make(chan error, 1)
	blocked := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_, err := io.Copy(io.Discard, r.Body) // a body that never comes
		if err == nil {
			err = r.Context().Err()
		}
		ended <- err
	}
	for _, how := range []string{"context", "close"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pr, pw := io.Pipe()
			defer pw.Close()
			resp, err := trip(t, ctx, blocked, http.MethodPost, pr)
			if err != nil {
				t.Fatal(err)
			}
			if how == "context" {
				cancel()
			} else {
				resp.Body.Close()
			}
			if err := <-ended; err == nil {
				t.Error("the handler saw no end")
			}
			if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
				t.Error("the answer can still be read")
			}
		})
	}
	t.Run("before the header", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := trip(t, ctx, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, http.MethodGet, nil); err == nil {
			t.Error("got an answer")
		}
	})
}

// A handler that stops half way must not look complete, and panics stay inside.
func TestInProcessAbort(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"aborted":  func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "half"); panic(http.ErrAbortHandler) },
		"panicked": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "half"); panic("oops") },
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := trip(t, t.Context(), h, http.MethodGet, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); string(got) != "half" || err == nil {
				t.Errorf("got %q, %v, want half and an error", got, err)
			}
		})
	}
	if _, err := trip(t, t.Context(), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, http.MethodGet, nil); err == nil {
		t.Error("got an answer of a handler that gave none")
	}
}

func TestInProcessLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 200 {
		resp, err := trip(t, t.Context(), func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) },
			http.MethodPost, struct{ io.Reader }{bytes.NewReader(make([]byte, 100_000))})
		if err != nil {
			t.Fatal(err)
		}
		io.CopyN(io.Discard, resp.Body, 1000) // not to the end
		resp.Body.Close()
	}
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before+5 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestErrors(t *testing.T) {
	answer := func(status int, body string) *client.Client {
		return client.New(client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		})))
	}
	_, err := answer(409, `{"error":{"kind":"conflict","message":"m","field":"f","value":"v","hint":"h"}}`).Get(t.Context(), "x")
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.Conflict || e.Field != "f" || e.Value != "v" || e.Hint != "h" {
		t.Errorf("got %#v", err)
	}
	for _, body := range []string{"", "{}", "gateway", `{"error":null}`} {
		if _, err := answer(502, body).Get(t.Context(), "x"); sandbox.KindOf(err) != sandbox.Internal {
			t.Errorf("%q: got %v, want internal", body, err)
		}
	}
	if _, err := answer(200, "[]").Get(t.Context(), "x"); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("an answer of another shape: got %v, want internal", err)
	}
	dead := client.New(client.InProcess(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
	if _, err := dead.Get(t.Context(), "x"); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("no answer: got %v, want unavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	slow := client.New(client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })))
	if _, err := slow.Get(ctx, "x"); sandbox.KindOf(err) != sandbox.DeadlineExceeded {
		t.Errorf("no answer in time: got %v, want deadline_exceeded", err)
	}
}

// Odd references reach the API as they are and never another route.
func TestReferencesAreEscaped(t *testing.T) {
	var got string
	c := client.New(client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.EscapedPath()
		w.WriteHeader(404)
	})))
	for ref, want := range map[string]string{
		"a":       "/belljar/v1/sandboxes/a",
		"..":      "/belljar/v1/sandboxes/%00..",
		"":        "/belljar/v1/sandboxes/%00",
		"a/../b":  "/belljar/v1/sandboxes/a%2F..%2Fb",
		"a?all=1": "/belljar/v1/sandboxes/a%3Fall=1",
	} {
		c.Get(t.Context(), ref) // answers 404 whatever it is
		if got != want {
			t.Errorf("%q: got %s, want %s", ref, got, want)
		}
	}
}
