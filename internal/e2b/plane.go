package e2b

import (
	"context"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/e2b/files"
	"github.com/belljar-sh/belljar/internal/e2b/process"
	"github.com/belljar-sh/belljar/internal/e2b/reply"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on the requests of one sandbox that are under way. A channel carries
// 256 streams; each request takes one, a stream of output now and then a second
// one for what it acknowledges, and each watcher one for good.
const (
	maxRequests = 160
	maxStreams  = 128
)

// plane is what is kept for one sandbox.
type plane struct {
	o     Options
	id    sandbox.ID
	g     Guest
	mux   *http.ServeMux
	files *files.Service

	all, streams chan struct{} // one token for each request under way

	mu    sync.Mutex
	cpu   time.Duration // at the last request for metrics
	cpuAt time.Time
}

func newPlane(o Options, id sandbox.ID, g Guest) *plane {
	base := o.Base
	p := &plane{
		o: o, id: id, g: g, mux: http.NewServeMux(), files: files.New(base, g),
		all: make(chan struct{}, maxRequests), streams: make(chan struct{}, maxStreams),
		cpuAt: g.StartedAt(),
	}
	p.mux.Handle(process.New(g).Handler(reply.HandlerOptions()...))
	p.mux.Handle(p.files.Handler(reply.HandlerOptions()...))
	p.files.Routes(p.mux)
	p.mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	p.mux.HandleFunc("GET /metrics", p.metrics)
	p.mux.HandleFunc("GET /envs", p.envs)
	p.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply.Fail(w, http.StatusNotFound, "there is no such route")
	})
	return p
}

func (p *plane) close() { p.files.Close() }

// lasting names the calls that may go on for ever.
func lasting(path string) bool {
	for _, s := range []string{"/process.Process/Start", "/process.Process/Connect", "/process.Process/StreamInput", "/filesystem.Filesystem/WatchDir"} {
		if path == s {
			return true
		}
	}
	return false
}

// serve answers a request, if there is room for one more.
func (p *plane) serve(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "//") || strings.Contains(r.URL.Path, "/.") {
		reply.Fail(w, http.StatusNotFound, "there is no such route") // a mux would redirect
		return
	}
	if r.URL.Path == "/health" {
		p.mux.ServeHTTP(w, r)
		return
	}
	if !enter(p.all) {
		busy(w)
		return
	}
	defer leave(p.all)
	if lasting(r.URL.Path) {
		if !enter(p.streams) {
			busy(w)
			return
		}
		defer leave(p.streams)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.o.Base, cancel)()
	defer p.recovered(r)
	p.mux.ServeHTTP(w, r.WithContext(ctx))
}

// recovered keeps a fault in one request from ending the server with all its
// others, and says what it was.
func (p *plane) recovered(r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler {
		p.o.Log.Error("a request panicked", "sandbox", p.id, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}

func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	reply.Fail(w, http.StatusTooManyRequests, "too many requests to this sandbox are under way")
}

func enter(room chan struct{}) bool {
	select {
	case room <- struct{}{}:
		return true
	default:
		return false
	}
}

func leave(room chan struct{}) { <-room }

// envs answers with the sandbox's environment.
func (p *plane) envs(w http.ResponseWriter, r *http.Request) {
	env, err := p.g.Env(r.Context())
	if err != nil {
		p.fail(w, err)
		return
	}
	reply.JSON(w, http.StatusOK, env)
}

func (p *plane) fail(w http.ResponseWriter, err error) {
	if reply.IsGone(sandbox.AsError(err)) {
		reply.NoSandbox(w, string(p.id))
		return
	}
	reply.Fail(w, reply.Status(err), sandbox.AsError(err).Error())
}

// metrics is the answer about what a sandbox uses.
type metrics struct {
	At         int64   `json:"ts"` // unix seconds
	CPUs       int     `json:"cpu_count"`
	CPUPercent float64 `json:"cpu_used_pct"` // of one CPU, since the last answer
	MemTotal   int64   `json:"mem_total"`
	MemUsed    int64   `json:"mem_used"`
	MemCache   int64   `json:"mem_cache"`
	DiskUsed   int64   `json:"disk_used"`
	DiskTotal  int64   `json:"disk_total"`
	MemTotalM  int64   `json:"mem_total_mib"`
	MemUsedM   int64   `json:"mem_used_mib"`
}

func (p *plane) metrics(w http.ResponseWriter, r *http.Request) {
	cpu, m, err := p.g.Usage(r.Context())
	if err != nil {
		p.fail(w, err)
		return
	}
	now := p.o.Now()
	reply.JSON(w, http.StatusOK, metrics{
		At: now.Unix(), CPUs: m.CPUs, CPUPercent: p.percent(cpu, now),
		MemTotal: m.MemTotal, MemUsed: m.MemUsed, MemCache: m.MemCache, DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
		MemTotalM: m.MemTotal >> 20, MemUsedM: m.MemUsed >> 20,
	})
}

// percent is the use of CPU since the last request for it.
func (p *plane) percent(cpu time.Duration, now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	used, took := cpu-p.cpu, now.Sub(p.cpuAt)
	p.cpu, p.cpuAt = cpu, now
	if used <= 0 || took <= 0 {
		return 0
	}
	return float64(int64(float64(used)/float64(took)*10_000)) / 100
}
