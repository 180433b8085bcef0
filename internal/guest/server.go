package guest

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Config is how a [Server] is told where it runs. The zero value suits a
// sandbox; tests on a host set the rest.
type Config struct {
	// Init tells that this process is PID 1 of a sandbox and does PID 1's
	// duties: mounts, host name, home directories. Never set it on a host.
	Init bool
	// RunDir holds the guest's own files; default /run/belljar.
	RunDir string
	// Passwd and Group are read for users; default /etc/passwd, /etc/group.
	Passwd, Group string
	// HookDir holds the programs to run after a restore; default [wire.HookDir]
	// of PID 1 and none elsewhere.
	HookDir string
	// MachineIDs are the files that hold the machine's ID: the first is made
	// where it is missing. Default [MachineIDs] of PID 1 and none elsewhere.
	MachineIDs []string
	// HostnameFile holds the host name, where there is such a file. Default
	// /etc/hostname of PID 1 and none elsewhere.
	HostnameFile string
	// ReaderGrace is for tests; default [wire.ReaderGrace].
	ReaderGrace time.Duration
}

// Server serves one sandbox. Use [New]; it is safe for concurrent use.
type Server struct {
	base   context.Context // parent of every session
	cfg    Config
	mux    *http.ServeMux
	users  *directory
	reaper *reaper
	trees  forest
	root   bool // effective user is root: may act as others

	mu       sync.Mutex
	serving  bool
	prepared bool
	hello    wire.Hello
	session  context.Context // ends with quiesce; parent of every request
	endNow   context.CancelFunc
	inflight int
	idle     chan struct{} // closed when inflight reaches 0 while quiescing

	procs procTable
	hits  hitCounter

	uploads uploadLog

	initOnce    sync.Once
	furnishOnce sync.Once
	tuneOnce    sync.Once
	bootBound   bool     // by hello only, which the host sends one at a time
	bootID      string   // the same: what programs find, where it is bound
	notes       notes    // the same
	hostname    string   // the same
	machineID   string   // the same
	atRest      [32]byte // drawn before the last checkpoint, or after the restore from it
	homes       sync.Map // names of users whose home has been looked after
}

// New returns a server that waits for hello. Requests end when ctx is done.
func New(ctx context.Context, cfg Config) *Server {
	if cfg.RunDir == "" {
		cfg.RunDir = "/run/belljar"
	}
	if cfg.ReaderGrace == 0 {
		cfg.ReaderGrace = wire.ReaderGrace
	}
	if cfg.Init && cfg.HookDir == "" {
		cfg.HookDir = wire.HookDir
	}
	if cfg.Init && cfg.HostnameFile == "" {
		cfg.HostnameFile = "/etc/hostname"
	}
	if cfg.Init && cfg.MachineIDs == nil {
		cfg.MachineIDs = MachineIDs()
	}
	if cfg.Passwd == "" {
		cfg.Passwd = "/etc/passwd"
	}
	if cfg.Group == "" {
		cfg.Group = "/etc/group"
	}
	s := &Server{
		base:   ctx,
		cfg:    cfg,
		users:  &directory{passwd: cfg.Passwd, group: cfg.Group},
		reaper: newReaper(),
		root:   os.Geteuid() == 0,
	}
	s.procs.init(s)
	s.routes()
	return s
}

// ServeHTTP serves the requests of the down channel.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends all processes of the sandbox and waits for them. PID 1 need not
// call it: its end ends them.
func (s *Server) Close(ctx context.Context) error {
	var first error
	for _, p := range s.procs.all() {
		if err := p.destroy(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// request is one request after the checks that all share.
type request struct {
	*http.Request
	w   http.ResponseWriter
	ctx context.Context // ends with the request or the generation
}

type handler func(q *request) error

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("POST /v1/hello", func(w http.ResponseWriter, r *http.Request) {
		reply(w, s.serveHello(&request{Request: r, w: w, ctx: r.Context()}))
	})
	s.mux.HandleFunc("POST /v1/prepare", s.servePrepare)
	s.mux.HandleFunc("POST /v1/quiesce", s.serveQuiesce)
	for pattern, h := range map[string]handler{
		"GET /v1/ping":                   func(q *request) error { return noContent(q) },
		"GET /v1/metrics":                s.getMetrics,
		"GET /v1/env":                    s.getEnv,
		"POST /v1/processes":             s.postProcess,
		"GET /v1/processes":              s.listProcesses,
		"GET /v1/processes/{id}":         s.getProcess,
		"GET /v1/processes/{id}/output":  s.getOutput,
		"POST /v1/processes/{id}/ack":    s.postAck,
		"POST /v1/processes/{id}/stdin":  s.postStdin,
		"POST /v1/processes/{id}/resize": s.postResize,
		"POST /v1/processes/{id}/signal": s.postSignal,
		"DELETE /v1/processes/{id}":      s.deleteProcess,
		"GET /v1/files":                  s.getFile,
		"PUT /v1/files":                  s.putFile,
		"DELETE /v1/files":               s.deleteFile,
		"GET /v1/stat":                   s.getStat,
		"GET /v1/dir":                    s.getDir,
		"POST /v1/mkdir":                 s.postMkdir,
		"POST /v1/move":                  s.postMove,
		"GET /v1/tar":                    s.getTar,
		"PUT /v1/tar":                    s.putTar,
		"GET /v1/watch":                  s.getWatch,
	} {
		s.mux.HandleFunc(pattern, s.serve(h))
	}
}

// serve wraps h with the checks of the session.
func (s *Server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		session, err := s.enter(r)
		if err != nil {
			reply(w, err)
			return
		}
		defer s.leave()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(session, cancel)()
		err = h(&request{Request: r, w: w, ctx: ctx})
		if err != nil && err != errBroken && session.Err() != nil {
			err = sandbox.Errorf(sandbox.Unavailable, "the sandbox is being quiesced")
		}
		reply(w, err)
	}
}

func (s *Server) enter(r *http.Request) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return nil, errEarly
	}
	if err := s.checkGeneration(r); err != nil {
		return nil, err
	}
	s.inflight++
	return s.session, nil
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight--
	if s.inflight == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// defaults returns the sandbox's own environment, user and directory.
func (s *Server) defaults() wire.Hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hello
}
