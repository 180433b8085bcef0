package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/e2b/files"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// shelf is a sandbox of which only a file can be read; list, when set, is what
// asking for its processes does.
type shelf struct {
	Guest
	list func() ([]guest.Process, error)
}

func (shelf) StartedAt() time.Time { return time.Unix(0, 0) }

func (s shelf) Processes(context.Context) ([]guest.Process, error) {
	if s.list != nil {
		return s.list()
	}
	return nil, nil
}

func (shelf) Open(_ context.Context, path, _ string, _ int64) (*files.File, error) {
	return &files.File{ReadCloser: io.NopCloser(strings.NewReader(path)), Size: int64(len(path))}, nil
}

// room has one sandbox.
type room struct {
	id sandbox.ID
	g  Guest

	mu   sync.Mutex
	gone bool
}

func (r *room) Running(id sandbox.ID) (Guest, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != r.id || r.gone {
		return nil, sandbox.Errorf(sandbox.NotFound, "no such sandbox")
	}
	return r.g, nil
}

const someID = "aaaaaaaaaaaaaaaaaaaa"

func serve(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set(HeaderID, someID)
	r.Header.Set(HeaderPort, "49983")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAccessToken: where a sandbox has a token, nothing but health is answered
// without it; the bodies are compared by clients.
func TestAccessToken(t *testing.T) {
	h := New(Options{
		Sandboxes: &room{id: someID, g: shelf{}}, Base: t.Context(),
		AccessToken: func(sandbox.ID) string { return vectorToken },
		Now:         func() time.Time { return time.Unix(1000, 0) },
	})
	defer h.Close()
	tests := []struct {
		name, method, target string
		headers              []string
		status               int
		body                 string
	}{
		{"health", "GET", "/health", nil, 204, ""},
		{"nothing", "GET", "/envs", nil, 401, `{"code":401,"message":"the access token is missing: send it as X-Access-Token"}`},
		{"unsigned", "GET", "/files?path=x", nil, 401, `{"code":401,"message":"missing signature query parameter"}`},
		{"signed wrongly", "GET", signed("hello.txt", "user", "v1_x", ""), nil, 401, `{"code":401,"message":"invalid signature"}`},
		{"expired", "GET", signed("hello.txt", "user", Signature("hello.txt", "read", "user", vectorToken, "999"), "999"), nil, 401, `{"code":401,"message":"signature is already expired"}`},
		{"signed", "GET", signed("hello.txt", "user", vectorSign, ""), nil, 200, "hello.txt"},
		{"with the token", "GET", "/files?path=x", []string{"X-Access-Token", vectorToken}, 200, "x"},
		{"a call", "POST", "/process.Process/List", []string{"Content-Type", "application/json"}, 401, `{"code":401,"message":"the access token is missing: send it as X-Access-Token"}`},
		{"a call with the token", "POST", "/process.Process/List", []string{"Content-Type", "application/json", "X-Access-Token", vectorToken}, 200, "{}"},
		{"what only an operator asks", "POST", "/init", []string{"X-Access-Token", vectorToken}, 404, `{"code":404,"message":"there is no such route"}`},
		{"a path that is not clean", "GET", "/files/../health", []string{"X-Access-Token", vectorToken}, 404, `{"code":404,"message":"there is no such route"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := ""
			if tt.method == "POST" {
				body = "{}"
			}
			w := serve(h, tt.method, tt.target, body, tt.headers...)
			if w.Code != tt.status || w.Body.String() != tt.body {
				t.Errorf("got %d %s, want %d %s", w.Code, w.Body, tt.status, tt.body)
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "*" {
				t.Error("a page of another origin cannot read the answer")
			}
		})
	}
	if w := serve(h, "OPTIONS", "/files", "", "Access-Control-Request-Method", "POST"); w.Code != 204 || w.Header().Get("Access-Control-Allow-Headers") == "" {
		t.Errorf("preflight: got %d %v", w.Code, w.Header())
	}
}

// TestRequestsAreBounded: one sandbox takes so many requests at once and no
// more, and one that has ended is not found at once.
func TestRequestsAreBounded(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	r := &room{id: someID, g: shelf{list: func() ([]guest.Process, error) {
		entered <- struct{}{}
		<-hold
		return nil, nil
	}}}
	h := New(Options{Sandboxes: r, Base: t.Context()})
	defer h.Close()
	var wg sync.WaitGroup
	for range maxRequests {
		wg.Go(func() { serve(h, "POST", "/process.Process/List", "{}", "Content-Type", "application/json") })
		<-entered
	}
	w := serve(h, "POST", "/process.Process/List", "{}", "Content-Type", "application/json")
	if w.Code != 429 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("got %d %v, want 429 with a time to come back", w.Code, w.Header())
	}
	if w := serve(h, "GET", "/health", ""); w.Code != 204 {
		t.Errorf("health of a busy sandbox: got %d", w.Code)
	}
	close(hold)
	wg.Wait()
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	w = serve(h, "GET", "/health", "")
	var body map[string]any
	if w.Code != 502 || json.Unmarshal(w.Body.Bytes(), &body) != nil || body["sandboxId"] != someID {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// FuzzRequest: whatever is sent to a route is answered, and no route panics.
func FuzzRequest(f *testing.F) {
	routes := []string{
		"/process.Process/List", "/process.Process/SendSignal", "/process.Process/SendInput", "/process.Process/Update",
		"/process.Process/CloseStdin", "/process.Process/Connect", "/filesystem.Filesystem/GetWatcherEvents",
		"/filesystem.Filesystem/RemoveWatcher", "/files/compose",
	}
	types := []string{"application/json", "application/proto", "application/connect+json", "application/connect+proto", "application/grpc"}
	f.Add(byte(1), byte(0), []byte(`{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}`))
	f.Add(byte(2), byte(0), []byte(`{"process":{"tag":"x"},"input":{"stdin":"eA=="}}`))
	f.Add(byte(5), byte(2), []byte("\x00\x00\x00\x00\x02{}"))
	f.Add(byte(8), byte(0), []byte(`{"source_paths":[],"destination":"x"}`))
	h := New(Options{Sandboxes: &room{id: someID, g: shelf{}}, Base: f.Context()})
	f.Fuzz(func(t *testing.T, route, kind byte, body []byte) {
		r := httptest.NewRequest("POST", routes[int(route)%len(routes)], bytes.NewReader(body))
		r.Header.Set(HeaderID, someID)
		r.Header.Set(HeaderPort, "49983")
		r.Header.Set("Content-Type", types[int(kind)%len(types)])
		w := httptest.NewRecorder()
		if strings.HasSuffix(r.URL.Path, "compose") && bytes.Contains(body, []byte(`"`)) && json.Valid(body) {
			return // would need a sandbox
		}
		h.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 599 {
			t.Errorf("status %d", w.Code)
		}
	})
}
