package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"

	"github.com/belljar-sh/belljar/internal/gen/api"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

func (s *Server) startProcess(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	output := q.flag("output")
	if err := q.done(); err != nil {
		return err
	}
	var req api.Start
	if err := decode(r, &req); err != nil {
		return err
	}
	if output {
		body, err := s.m.StartOutput(r.Context(), r.PathValue("ref"), *start(&req))
		return s.sendFrames(w, r, http.StatusCreated, body, err)
	}
	p, err := s.m.StartProcess(r.Context(), r.PathValue("ref"), *start(&req))
	return answer(w, http.StatusCreated, p, err)
}

func (s *Server) listProcesses(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := s.m.Processes(r.Context(), r.PathValue("ref"))
	return answer(w, http.StatusOK, api.ProcessList{Processes: list}, err)
}

func (s *Server) getProcess(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	p, err := s.m.Process(r.Context(), r.PathValue("ref"), r.PathValue("process"))
	return answer(w, http.StatusOK, p, err)
}

func (s *Server) waitProcess(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	p, err := s.m.WaitProcess(r.Context(), r.PathValue("ref"), r.PathValue("process"))
	return answer(w, http.StatusOK, p, err)
}

func (s *Server) killProcess(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	background := q.flag("background")
	if err := q.done(); err != nil {
		return err
	}
	return noContent(w, s.m.KillProcess(r.Context(), r.PathValue("ref"), r.PathValue("process"), background))
}

func (s *Server) output(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	stdout, stderr := q.number("stdout"), q.number("stderr")
	if err := q.done(); err != nil {
		return err
	}
	body, err := s.m.Output(r.Context(), r.PathValue("ref"), r.PathValue("process"), stdout, stderr)
	return s.sendFrames(w, r, http.StatusOK, body, err)
}

// relayer is a stream of output that can be moved to a connection.
type relayer interface {
	CanRelay() bool
	RelayTo(ctx context.Context, dst *net.UnixConn, head []byte) error
}

// sendFrames streams the output of a process.
func (s *Server) sendFrames(w http.ResponseWriter, r *http.Request, status int, body io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer body.Close()
	if from, ok := body.(relayer); ok && movable(r) && from.CanRelay() {
		w.Header().Set("Content-Type", frames)
		return s.relay(w, r, func(t *taken) error { return from.RelayTo(r.Context(), t.conn, t.head(status, -1)) })
	}
	beginFrames(w, status)
	pass(w, body, true)
	return nil
}

func (s *Server) ack(w http.ResponseWriter, r *http.Request) error {
	var a guest.Ack
	if err := bodyOnly(r, &a); err != nil {
		return err
	}
	return noContent(w, s.m.Ack(r.Context(), r.PathValue("ref"), r.PathValue("process"), a))
}

func (s *Server) resize(w http.ResponseWriter, r *http.Request) error {
	var size guest.PTYSize
	if err := bodyOnly(r, &size); err != nil {
		return err
	}
	return noContent(w, s.m.Resize(r.Context(), r.PathValue("ref"), r.PathValue("process"), size))
}

func (s *Server) signal(w http.ResponseWriter, r *http.Request) error {
	var sig guest.Signal
	if err := bodyOnly(r, &sig); err != nil {
		return err
	}
	return noContent(w, s.m.Signal(r.Context(), r.PathValue("ref"), r.PathValue("process"), sig))
}

func (s *Server) stdin(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	offset := q.number("offset")
	if err := q.done(); err != nil {
		return err
	}
	eof := r.Header.Get(guest.HeaderEOF) == "1"
	n, err := s.m.Stdin(r.Context(), r.PathValue("ref"), r.PathValue("process"), offset, r.Body, r.ContentLength, eof)
	return answer(w, http.StatusOK, n, err)
}

func bodyOnly(r *http.Request, out any) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return decode(r, out)
}
