package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/e2b/files"
	"github.com/belljar-sh/belljar/internal/e2b/process"
	"github.com/belljar-sh/belljar/internal/e2b/reply"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// The headers by which a request finds its sandbox.
const (
	HeaderID    = "E2b-Sandbox-Id"
	HeaderPort  = "E2b-Sandbox-Port"
	headerToken = "X-Access-Token"
)

// Port is the port of a sandbox on which this wire is asked for.
const Port = 49983

// Version is the version of the wire that clients are told; they look at it for
// what they may ask.
const Version = "0.6.4"

// Sandboxes finds running sandboxes. Implementations are safe for concurrent
// use.
type Sandboxes interface {
	// Running returns the sandbox of that ID, or an error of any kind when none
	// runs. What it returned may be kept; it says [sandbox.Unavailable] once the
	// sandbox has ended.
	Running(id sandbox.ID) (Guest, error)
}

// Guest reaches one sandbox.
type Guest interface {
	process.Guest
	files.Guest

	StartedAt() time.Time
	// Env is the environment that every process of the sandbox begins with.
	Env(ctx context.Context) (map[string]string, error)
	// Usage returns the CPU time that the host has counted, and what the guest
	// says that it counts.
	Usage(ctx context.Context) (cpu time.Duration, m guest.Metrics, err error)
}

// Options wire a [Handler].
type Options struct {
	Sandboxes Sandboxes
	// AccessToken returns what a request for a sandbox must carry; "" leaves it
	// open. nil: every sandbox is open, to whoever reaches the handler at all.
	AccessToken func(id sandbox.ID) string
	// Base ends with the server: streams and watchers end with it.
	Base context.Context
	Log  *slog.Logger
	// Now is for tests; default time.Now.
	Now func() time.Time
}

// Handler serves the wire. Use [New]; it is safe for concurrent use.
type Handler struct {
	o Options

	mu    sync.Mutex
	boxes map[sandbox.ID]*plane
}

// New returns a handler.
func New(o Options) *Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{o: o, boxes: map[sandbox.ID]*plane{}}
}

// Mine reports whether a request on a socket that also serves something else
// is for a [Handler].
func Mine(r *http.Request) bool {
	return r.Header.Get(HeaderID) != "" || r.Header.Get(HeaderPort) != ""
}

// ServeHTTP answers a request that names its sandbox by headers.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, port := r.Header.Get(HeaderID), r.Header.Get(HeaderPort)
	if id == "" || port == "" {
		reply.Fail(w, http.StatusBadRequest, "missing header")
		return
	}
	if len(r.Header.Values(HeaderID)) > 1 || len(r.Header.Values(HeaderPort)) > 1 {
		reply.Fail(w, http.StatusBadRequest, "more than one header says where the request goes")
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		reply.Fail(w, http.StatusBadRequest, "Invalid sandbox port")
		return
	}
	h.ServeSandbox(w, r, id, int(n))
}

// ServeSandbox answers a request for a port of a sandbox, however both were
// named.
func (h *Handler) ServeSandbox(w http.ResponseWriter, r *http.Request, id string, port int) {
	if !wellFormed(id) {
		reply.Fail(w, http.StatusBadRequest, "Invalid sandbox ID")
		return
	}
	g, err := h.o.Sandboxes.Running(sandbox.ID(id))
	if err != nil {
		reply.NoSandbox(w, id)
		return
	}
	if port != Port {
		reply.NoPort(w, id, port)
		return
	}
	token := ""
	if h.o.AccessToken != nil {
		token = h.o.AccessToken(sandbox.ID(id))
		if cors(w, r) {
			return
		}
	}
	if token != "" {
		if err := authorize(r, token, h.o.Now()); err != nil {
			reply.Fail(w, http.StatusUnauthorized, err.Error())
			return
		}
	}
	h.plane(sandbox.ID(id), g).serve(w, r)
}

// wellFormed reports whether a sandbox could have this ID.
func wellFormed(id string) bool {
	return id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	})
}

// plane returns what is kept for a sandbox, making it at its first request and
// letting go of those of sandboxes that have ended.
func (h *Handler) plane(id sandbox.ID, g Guest) *plane {
	h.mu.Lock()
	if p := h.boxes[id]; p != nil {
		h.mu.Unlock()
		return p
	}
	p := newPlane(h.o, id, g)
	h.boxes[id] = p
	var ended []*plane
	for other, q := range h.boxes {
		if _, err := h.o.Sandboxes.Running(other); err != nil && other != id {
			delete(h.boxes, other)
			ended = append(ended, q)
		}
	}
	h.mu.Unlock()
	for _, q := range ended {
		q.close()
	}
	return p
}

// Close ends all watchers. Requests are ended by whoever serves them.
func (h *Handler) Close() {
	h.mu.Lock()
	all := h.boxes
	h.boxes = map[sandbox.ID]*plane{}
	h.mu.Unlock()
	for _, p := range all {
		p.close()
	}
}
