package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/daemon/fdpass"
	"github.com/belljar-sh/belljar/internal/gen/api"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// Base is the path beneath which the API is served.
const Base = "/belljar/v1"

// headerBuild carries builds, as client.HeaderBuild.
const headerBuild = "Belljar-Build"

// Options wire a [Server].
type Options struct {
	Manager    *manager.Manager
	Version    string
	Build      string
	Mode       string // "daemon" or "in-process"
	Instance   string // new at every start
	StateDir   string
	RuntimeDir string
	// Stop, when set, ends the daemon, killing its sandboxes first if kill is
	// set; it returns at once.
	Stop func(kill bool)
	// Streams, when set, ends with the daemon: requests that may last for ever
	// are then broken off, so that their callers go on with the next daemon.
	Streams context.Context
	Log     *slog.Logger
}

// Server is the API as an [http.Handler]. It takes open files for mounts, too,
// for callers in the same process.
type Server struct {
	o       Options
	m       *manager.Manager
	mux     *http.ServeMux
	started time.Time
}

// New returns the API over a manager.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, m: o.Manager, mux: http.NewServeMux(), started: time.Now().Round(0)}
	for pattern, h := range s.routes() {
		method, path, _ := strings.Cut(pattern, " ")
		s.mux.HandleFunc(method+" "+Base+path, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				s.fail(w, r, err)
			}
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, sandbox.Errorf(sandbox.NotFound, "the API has no such route").WithField("path", r.Method+" "+r.URL.Path))
	})
	return s
}

// handler answers, or returns an error before it has written anything. After
// that it must end the connection by panicking with http.ErrAbortHandler.
type handler func(w http.ResponseWriter, r *http.Request) error

// lasting wraps the handlers of requests that may last for ever.
func (s *Server) lasting(h handler) handler {
	if s.o.Streams == nil {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.o.Streams, cancel)()
		err := h(w, r.WithContext(ctx))
		if err != nil && s.o.Streams.Err() != nil {
			panic(http.ErrAbortHandler)
		}
		return err
	}
}

// routes is the whole API: a test compares it with api/openapi.yaml.
func (s *Server) routes() map[string]handler {
	const sb, proc = "/sandboxes/{ref}", "/sandboxes/{ref}/processes/{process}"
	return map[string]handler{
		"POST /sandboxes":        s.create,
		"GET /sandboxes":         s.list,
		"GET " + sb:              s.get,
		"DELETE " + sb:           s.kill,
		"POST " + sb + "/pause":  s.pause,
		"POST " + sb + "/resume": s.resume,
		"GET " + sb + "/wait":    s.lasting(s.wait),
		"GET " + sb + "/events":  s.lasting(s.events),
		"GET " + sb + "/stats":   s.stats,
		"GET " + sb + "/logs":    s.lasting(s.logs),
		"PUT " + sb + "/timeout": s.setTimeout,

		"POST " + sb + "/processes": s.lasting(s.startProcess),
		"GET " + sb + "/processes":  s.listProcesses,
		"GET " + proc:               s.getProcess,
		"DELETE " + proc:            s.killProcess,
		"GET " + proc + "/wait":     s.lasting(s.waitProcess),
		"GET " + proc + "/output":   s.lasting(s.output),
		"POST " + proc + "/ack":     s.ack,
		"POST " + proc + "/stdin":   s.lasting(s.stdin),
		"POST " + proc + "/resize":  s.resize,
		"POST " + proc + "/signal":  s.signal,

		"GET " + sb + "/files":    s.getFile,
		"PUT " + sb + "/files":    s.putFile,
		"DELETE " + sb + "/files": s.removeFile,
		"GET " + sb + "/stat":     s.stat,
		"GET " + sb + "/dir":      s.readDir,
		"POST " + sb + "/mkdir":   s.mkdir,
		"POST " + sb + "/move":    s.move,
		"GET " + sb + "/tar":      s.getTar,
		"PUT " + sb + "/tar":      s.putTar,
		"GET " + sb + "/changes":  s.changes,
		"GET " + sb + "/watch":    s.lasting(s.watch),

		"POST " + sb + "/snapshots":                 s.takeSnapshot,
		"POST " + sb + "/fork":                      s.fork,
		"GET /snapshots":                            s.snapshots,
		"POST /snapshots":                           s.loadSnapshot,
		"GET /snapshots/{snapshot}":                 s.getSnapshot,
		"DELETE /snapshots/{snapshot}":              s.removeSnapshot,
		"POST /snapshots/{snapshot}/verify":         s.verifySnapshot,
		"GET /snapshots/{snapshot}/archive":         s.saveSnapshot,
		"GET /snapshots/{snapshot}/tar":             s.snapshotTar,
		"PUT /snapshots/{snapshot}/names/{name}":    s.tagSnapshot,
		"DELETE /snapshots/{snapshot}/names/{name}": s.untagSnapshot,

		"GET /templates":           s.templates,
		"GET /pools":               s.pools,
		"PUT /pools/{template}":    s.setPool,
		"DELETE /pools/{template}": s.removePool,
		"GET /system/df":           s.diskUse,
		"POST /system/prune":       s.prune,
		"GET /system/quota":        s.quota,
		"PUT /system/quota":        s.setQuota,
		"GET /info":                s.info,
		"POST /stop":               s.stop,
	}
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(headerBuild, s.o.Build)
	if want := r.Header.Get(headerBuild); want != "" && want != s.o.Build && !anyBuild(r.URL.Path) {
		s.fail(w, r, sandbox.Errorf(sandbox.Conflict, "the daemon is of build %s and this program of another", s.o.Build).
			WithField("build", want).WithHint("`belljar daemon stop` ends it and leaves its sandboxes running; the next command starts the new one"))
		return
	}
	// A mux would clean such a path and redirect.
	if strings.Contains(r.URL.Path, "//") || strings.Contains(r.URL.Path, "/./") || strings.Contains(r.URL.Path, "/../") {
		s.fail(w, r, sandbox.Errorf(sandbox.NotFound, "the API has no such route").WithField("path", r.URL.Path))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// anyBuild names what a program of another build may ask for.
func anyBuild(path string) bool { return path == Base+"/info" || path == Base+"/stop" }

// SendFiles takes open files for mounts; the caller keeps its own.
func (s *Server) SendFiles(ctx context.Context, files []*os.File) ([]string, error) {
	if len(files) == 0 || len(files) > fdpass.MaxFiles {
		return nil, sandbox.Errorf(sandbox.Invalid, "1 to %d files can be passed at once", fdpass.MaxFiles)
	}
	dups := make([]*os.File, 0, len(files))
	for _, f := range files {
		d, err := fdpass.Dup(f)
		if err != nil {
			fdpass.Close(dups)
			return nil, sandbox.Errorf(sandbox.ResourceExhausted, "a file cannot be held open: %w", err).WithField("file", f.Name())
		}
		dups = append(dups, d)
	}
	return s.m.AddFiles("", dups)
}

// fail answers with an error. Its private cause goes to the log.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := sandbox.AsError(err)
	if e.Kind == sandbox.Internal {
		s.o.Log.Error("a request failed", "method", r.Method, "path", r.URL.Path, "err", err, "cause", e.Unwrap())
	}
	for _, k := range []string{"Content-Length", "Content-Type", "Content-Range", "Transfer-Encoding"} {
		w.Header().Del(k)
	}
	writeJSON(w, guest.Status(e.Kind), api.ErrorBody{Error: *e})
}

// Refusal answers every request with why there is no daemon: err, which this
// build's daemon could not start for. It is [sandbox.Unavailable], with the field
// and hint of err.
func Refusal(build string, err error) http.Handler {
	cause := sandbox.AsError(err)
	text := cause.Message
	if why := cause.Unwrap(); why != nil && !strings.Contains(text, why.Error()) {
		text += ": " + why.Error()
	}
	e := sandbox.Errorf(sandbox.Unavailable, "the daemon cannot start: %s", text)
	e.Field, e.Value, e.Hint = cause.Field, cause.Value, cause.Hint
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(headerBuild, build)
		writeJSON(w, guest.Status(e.Kind), api.ErrorBody{Error: *e})
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(http.ErrAbortHandler) // our own types: cannot be
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the caller may have gone
}

func answer(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	writeJSON(w, status, v)
	return nil
}

func noContent(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxBody bounds the JSON of a request: an environment of a megabyte, escaped.
const maxBody = 8 << 20

// decode reads one JSON value and nothing else, refusing unknown fields.
func decode(r *http.Request, out any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return sandbox.Errorf(sandbox.Canceled, "the request was cut off: %w", err)
	}
	if len(b) > maxBody {
		return sandbox.Errorf(sandbox.Invalid, "a request has at most %d bytes", maxBody)
	}
	return decodeBytes(b, out)
}
