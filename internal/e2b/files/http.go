package files

import (
	"net/http"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Routes mounts the routes for files. Who may use them is decided before.
func (s *Service) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", s.get)
	mux.HandleFunc("POST /files", s.post)
	mux.HandleFunc("POST /files/compose", s.compose)
}

// written is one file of an answer to an upload.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func wrote(e *guest.Entry, meta map[string]string) written {
	return written{Path: valid(e.Path), Name: valid(e.Name), Type: "file", Metadata: meta}
}

// fail answers with an error about a path. Which of its sentences a client
// compares decides how it is said.
func (s *Service) fail(w http.ResponseWriter, r *http.Request, asked, user string, err error) {
	e := sandbox.AsError(err)
	shown := asked
	if e.Field == "path" && e.Value != "" {
		shown = e.Value
	}
	switch {
	case reply.IsGone(e):
		reply.NoSandbox(w, r.Header.Get("E2b-Sandbox-Id"))
	case e.Kind == sandbox.NotFound:
		reply.Fail(w, http.StatusNotFound, "path '"+shown+"' does not exist")
	case e.Kind == sandbox.Invalid && !reply.IsUser(e) && s.isDir(r, asked, user):
		reply.Fail(w, http.StatusBadRequest, "path '"+shown+"' is a directory")
	case e.Kind == sandbox.ResourceExhausted && r.Method == http.MethodPost:
		reply.Fail(w, http.StatusInsufficientStorage, e.Error())
	default:
		reply.Fail(w, reply.Status(err), e.Error())
	}
}

// isDir asks whether a path leads to a directory.
func (s *Service) isDir(r *http.Request, path, user string) bool {
	e, err := s.g.Stat(r.Context(), s.place(path), user)
	return err == nil && (e.Type == guest.TypeDir || e.TargetType == guest.TypeDir)
}

// target reads path and user of a request; it has answered when ok is false.
func target(w http.ResponseWriter, r *http.Request) (path, user string, ok bool) {
	q := r.URL.Query()
	for _, name := range []string{"path", "username"} {
		if len(q[name]) > 1 {
			reply.Fail(w, http.StatusBadRequest, name+" is given more than once")
			return "", "", false
		}
	}
	return q.Get("path"), q.Get("username"), true
}
