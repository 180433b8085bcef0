package httpapi

import (
	"net/http"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/sandbox"
)

func (s *Server) pools(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list := s.m.Pools()
	if list == nil {
		list = []sandbox.Pool{}
	}
	return answer(w, http.StatusOK, api.PoolList{Pools: list}, nil)
}

func (s *Server) setPool(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.PoolRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	p, err := s.m.SetPool(r.Context(), sandbox.PoolSpec{
		Template: r.PathValue("template"), Limits: req.Limits, Ready: req.Ready, Booted: req.Booted, Ceiling: req.Ceiling,
	})
	return answer(w, http.StatusOK, p, err)
}

func (s *Server) removePool(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	if err := s.m.RemovePool(r.Context(), r.PathValue("template")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
