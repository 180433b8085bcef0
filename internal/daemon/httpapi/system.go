package httpapi

import (
	"net/http"

	"github.com/belljar-sh/belljar/internal/gen/api"
)

func (s *Server) diskUse(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	use, err := s.m.DiskUse(r.Context())
	return answer(w, http.StatusOK, use, err)
}

func (s *Server) prune(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.PruneRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	pruned, err := s.m.Prune(r.Context(), req.All, req.DryRun)
	return answer(w, http.StatusOK, pruned, err)
}

func (s *Server) quota(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return answer(w, http.StatusOK, s.m.Quota(), nil)
}

func (s *Server) setQuota(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	var req api.QuotaRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	q, err := s.m.SetQuota(req.KeptBytes, req.FreeBytes)
	return answer(w, http.StatusOK, q, err)
}
