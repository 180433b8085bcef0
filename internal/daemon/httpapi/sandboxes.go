package httpapi

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/gen/api"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// start turns the API's word into the manager's.
func start(s *api.Start) *manager.Start {
	if s == nil {
		return nil
	}
	id := s.ID
	if id == "" {
		id = "p" + strings.ToLower(rand.Text())
	}
	return &manager.Start{Capture: s.Capture, Start: guest.Start{
		ID: id, Argv: s.Argv, Env: s.Env, Cwd: s.Cwd, User: s.User, PTY: s.PTY,
		Stdin: s.Stdin, Tag: s.Tag, Timeout: s.Timeout, KeepTree: s.Keep, Lease: s.Lease,
	}}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.CreateRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	c, err := s.m.Create(r.Context(), req.Spec, start(req.Start))
	return answer(w, http.StatusCreated, api.Created{Sandbox: c.Sandbox, Process: c.Process, StartError: c.StartError}, err)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	all := q.flag("all")
	if err := q.done(); err != nil {
		return err
	}
	return answer(w, http.StatusOK, api.SandboxList{Sandboxes: s.m.List(all)}, nil)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	sb, err := s.m.Get(r.PathValue("ref"))
	return answer(w, http.StatusOK, sb, err)
}

func (s *Server) kill(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	sb, err := s.m.Kill(r.Context(), r.PathValue("ref"))
	return answer(w, http.StatusOK, sb, err)
}

func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	kind := sandbox.KindMemory
	if q.text("memory") != "" && !q.flag("memory") {
		kind = sandbox.KindFiles
	}
	if err := q.done(); err != nil {
		return err
	}
	sb, err := s.m.Pause(r.Context(), r.PathValue("ref"), kind)
	return answer(w, http.StatusOK, sb, err)
}

// changes streams a list that is the guest's word.
func (s *Server) changes(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := s.m.Changes(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	defer list.Close()
	w.Header().Set("Content-Type", octets)
	w.WriteHeader(http.StatusOK)
	pass(w, list, false)
	return nil
}

func (s *Server) resume(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	act := s.m.Resume
	switch v := q.text("verify"); v {
	case "", "quick":
	case "full":
		act = s.m.ResumeVerified
	default:
		q.fail("verify", v, "this is quick or full")
	}
	if err := q.done(); err != nil {
		return err
	}
	sb, err := act(r.Context(), r.PathValue("ref"))
	return answer(w, http.StatusOK, sb, err)
}

func (s *Server) wait(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	command := q.flag("command")
	if err := q.done(); err != nil {
		return err
	}
	wait := s.m.Wait
	if command {
		wait = s.m.WaitCommand
	}
	sb, err := wait(r.Context(), r.PathValue("ref"))
	return answer(w, http.StatusOK, sb, err)
}

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.TimeoutRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	if req.Timeout == nil {
		return sandbox.Errorf(sandbox.Invalid, "a timeout is needed, 0 for none").WithField("timeout", "")
	}
	sb, err := s.m.SetTimeout(r.PathValue("ref"), *req.Timeout)
	return answer(w, http.StatusOK, sb, err)
}

func (s *Server) stats(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	st, err := s.m.Stats(r.Context(), r.PathValue("ref"))
	h := st.Host
	return answer(w, http.StatusOK, api.Stats{
		CPUTime: h.CPUTime, MemoryBytes: h.MemoryBytes, MemoryLimit: h.MemoryLimit, DiskBytes: h.DiskBytes, OOMKills: h.OOMKills,
		Tasks: h.Tasks, ReadBytes: h.ReadBytes, WrittenBytes: h.WrittenBytes, EgressRefused: h.EgressRefused, Guest: st.Guest,
	}, err)
}

// liveEvery is how often a quiet stream of events shows that it lives.
const liveEvery = 30 * time.Second

// events streams events, one JSON object a line.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	since, follow := q.number("since"), q.flag("follow")
	if err := q.done(); err != nil {
		return err
	}
	events, more, err := s.m.Events(r.PathValue("ref"), since)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	enc, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	alive := time.NewTicker(liveEvery)
	defer alive.Stop()
	for {
		for _, ev := range events {
			if err := enc.Encode(ev); err != nil {
				panic(http.ErrAbortHandler)
			}
			since = ev.Seq
		}
		if err := flush(); err != nil {
			panic(http.ErrAbortHandler)
		}
		if !follow || more == nil {
			return nil
		}
		select {
		case <-more:
		case <-alive.C:
			if _, err := w.Write([]byte("\n")); err != nil {
				panic(http.ErrAbortHandler)
			}
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
		// The sandbox may have been forgotten meanwhile: then it is over.
		if events, more, err = s.m.Events(r.PathValue("ref"), since); err != nil {
			return nil
		}
	}
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	ask := manager.LogQuery{Process: q.text("process"), From: q.text("from"), Follow: q.flag("follow")}
	ask.Offsets.Stdout, ask.Offsets.Stderr = q.number("stdout"), q.number("stderr")
	if err := q.done(); err != nil {
		return err
	}
	out := &lateWriter{w: w}
	err := s.m.Logs(r.Context(), r.PathValue("ref"), ask, out, out.flush)
	if err != nil && out.begun {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (s *Server) templates(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := s.m.Templates(r.Context())
	if list == nil {
		list = []sandbox.Template{}
	}
	return answer(w, http.StatusOK, api.TemplateList{Templates: list}, err)
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	probe := q.flag("probe")
	if err := q.done(); err != nil {
		return err
	}
	out := api.Info{
		Version: s.o.Version, Build: s.o.Build, Mode: s.o.Mode, PID: os.Getpid(), Instance: s.o.Instance,
		StartedAt: s.started, Live: s.m.Live(), StateDir: s.o.StateDir, RuntimeDir: s.o.RuntimeDir,
	}
	if probe {
		reports, err := s.m.Probe(r.Context())
		if err != nil {
			return err
		}
		out.Reports = reports
	}
	return answer(w, http.StatusOK, out, nil)
}

func (s *Server) stop(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	kill := q.flag("kill")
	if err := q.done(); err != nil {
		return err
	}
	if s.o.Stop == nil {
		return sandbox.Errorf(sandbox.Unsupported, "there is no daemon to stop")
	}
	w.WriteHeader(http.StatusNoContent)
	_ = http.NewResponseController(w).Flush()
	s.o.Stop(kill)
	return nil
}
