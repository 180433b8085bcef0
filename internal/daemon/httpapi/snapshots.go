package httpapi

import (
	"net/http"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

func (s *Server) takeSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.SnapshotRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	out, err := s.m.Snapshot(r.Context(), r.PathValue("ref"), manager.SnapshotOptions{
		Name: req.Name, Kind: req.Kind, Dir: req.Dir, User: req.User,
	})
	return answer(w, http.StatusCreated, out, err)
}

func (s *Server) fork(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	req := api.ForkRequest{Count: 1}
	if err := decode(r, &req); err != nil {
		return err
	}
	made, stopped, err := s.m.Fork(r.Context(), r.PathValue("ref"), req.Count, req.Name)
	return answer(w, http.StatusCreated, api.Forked{Sandboxes: made, Stopped: stopped}, err)
}

func (s *Server) snapshots(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return answer(w, http.StatusOK, api.SnapshotList{Snapshots: s.m.Snapshots()}, nil)
}

// snapshot answers with what act says of the snapshot that the path names.
func (s *Server) snapshot(w http.ResponseWriter, r *http.Request, act func(ref string) (sandbox.Snapshot, error)) error {
	if err := noQuery(r); err != nil {
		return err
	}
	out, err := act(r.PathValue("snapshot"))
	return answer(w, http.StatusOK, out, err)
}

func (s *Server) getSnapshot(w http.ResponseWriter, r *http.Request) error {
	return s.snapshot(w, r, s.m.GetSnapshot)
}

func (s *Server) removeSnapshot(w http.ResponseWriter, r *http.Request) error {
	return s.snapshot(w, r, s.m.RemoveSnapshot)
}

func (s *Server) verifySnapshot(w http.ResponseWriter, r *http.Request) error {
	return s.snapshot(w, r, s.m.VerifySnapshot)
}

func (s *Server) tagSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	move := q.flag("move")
	if err := q.done(); err != nil {
		return err
	}
	out, err := s.m.TagSnapshot(r.PathValue("snapshot"), r.PathValue("name"), move)
	return answer(w, http.StatusOK, out, err)
}

func (s *Server) untagSnapshot(w http.ResponseWriter, r *http.Request) error {
	return s.snapshot(w, r, func(ref string) (sandbox.Snapshot, error) {
		return s.m.UntagSnapshot(ref, r.PathValue("name"))
	})
}

// saveSnapshot streams a snapshot. What goes wrong once bytes have been sent
// breaks the connection off: half a stream is no stream.
func (s *Server) saveSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	write, release, err := s.m.SaveSnapshot(r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	defer release()
	w.Header().Set("Content-Type", "application/zstd")
	w.WriteHeader(http.StatusOK)
	if err := write(r.Context(), w); err != nil {
		s.o.Log.Warn("a snapshot was not exported", "snapshot", r.PathValue("snapshot"), "err", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// snapshotTar streams the archive in a snapshot of a directory.
func (s *Server) snapshotTar(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	f, err := s.m.SnapshotTar(r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/x-tar")
	w.WriteHeader(http.StatusOK)
	pass(w, f, false)
	return nil
}

func (s *Server) loadSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	name := q.text("name")
	if err := q.done(); err != nil {
		return err
	}
	out, err := s.m.LoadSnapshot(r.Context(), r.Body, name)
	return answer(w, http.StatusCreated, out, err)
}
