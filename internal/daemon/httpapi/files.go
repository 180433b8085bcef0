package httpapi

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/belljar-sh/belljar/internal/gen/api"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/relay"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxDepth bounds a listing.
const maxDepth = 64

// fileQuery reads what every request for files has.
func fileQuery(q *query) url.Values {
	v := url.Values{"path": {q.path("path")}}
	if user := q.text("user"); user != "" {
		if len(user) > 256 {
			q.fail("user", user, "a user's name has at most 256 bytes")
		}
		v.Set("user", user)
	}
	return v
}

// entry passes a request on whose answer is one entry.
func (s *Server) entry(w http.ResponseWriter, r *http.Request, path string, q *query, v url.Values) error {
	if err := q.done(); err != nil {
		return err
	}
	g, err := s.m.Guest(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	var out guest.Entry
	err = g.JSON(r.Context(), r.Method, path, v, nil, &out)
	return answer(w, http.StatusOK, out, err)
}

func (s *Server) stat(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	return s.entry(w, r, "/stat", q, fileQuery(q))
}

func (s *Server) mkdir(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	return s.entry(w, r, "/mkdir", q, fileQuery(q))
}

func (s *Server) move(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	v.Set("to", q.path("to"))
	return s.entry(w, r, "/move", q, v)
}

func (s *Server) readDir(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	depth := max(1, q.number("depth"))
	if depth > maxDepth {
		q.fail("depth", strconv.FormatInt(depth, 10), "a listing goes at most 64 levels down")
	}
	v.Set("depth", strconv.FormatInt(depth, 10))
	if err := q.done(); err != nil {
		return err
	}
	g, err := s.m.Guest(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	out, err := manager.List[guest.Entry](r.Context(), g, "/dir", v, manager.MaxEntries)
	return answer(w, http.StatusOK, api.EntryList{Entries: out}, err)
}

func (s *Server) removeFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	if err := q.done(); err != nil {
		return err
	}
	g, err := s.m.Guest(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return noContent(w, g.JSON(r.Context(), http.MethodDelete, "/files", v, nil, nil))
}

func (s *Server) getFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	return s.download(w, r, "/files", q, v, octets)
}

func (s *Server) getTar(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	return s.download(w, r, "/tar", q, v, "application/x-tar")
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	if q.flag("recursive") {
		v.Set("recursive", "1")
	}
	return s.download(w, r, "/watch", q, v, frames)
}

// download passes a guest's stream on. Of its header only status, length and
// range count, checked.
func (s *Server) download(w http.ResponseWriter, r *http.Request, path string, q *query, v url.Values, kind string) error {
	if err := q.done(); err != nil {
		return err
	}
	g, err := s.m.Guest(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	req := manager.Request{Method: http.MethodGet, Path: path, Query: v, Header: http.Header{}, Direct: kind == octets && movable(r)}
	if rng := r.Header.Get("Range"); rng != "" && kind == octets {
		if len(rng) > 128 {
			return sandbox.Errorf(sandbox.Invalid, "one range is enough").WithField("Range", rng)
		}
		req.Header.Set("Range", rng)
	}
	resp, err := g.Do(r.Context(), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if kind == frames { // of a watch, whose end its reader does not mind
		beginFrames(w, http.StatusOK)
		pass(w, resp.Body, true)
		return nil
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	status := http.StatusOK
	if kind == octets {
		if resp.ContentLength >= 0 {
			h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
		}
		if cr := resp.Header.Get("Content-Range"); resp.StatusCode == http.StatusPartialContent && contentRange(cr) {
			status = http.StatusPartialContent
			h.Set("Content-Range", cr)
		}
	}
	if from, ok := resp.Body.(interface{ Source() (relay.Source, bool) }); ok && req.Direct && resp.ContentLength >= relayLeast {
		if src, ok := from.Source(); ok {
			return s.relay(w, r, func(t *taken) error { return src.Send(r.Context(), t.conn, t.head(status, src.Length)) })
		}
	}
	w.WriteHeader(status)
	pass(w, resp.Body, false)
	return nil
}

// contentRange reports whether s looks like "bytes 1-2/3", with nothing else.
func contentRange(s string) bool {
	if len(s) < 6 || len(s) > 80 || s[:6] != "bytes " {
		return false
	}
	for _, c := range s[6:] {
		if (c < '0' || c > '9') && c != '-' && c != '/' && c != '*' {
			return false
		}
	}
	return true
}

func (s *Server) putFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	if mode := q.text("mode"); mode != "" {
		if n, err := strconv.ParseUint(mode, 8, 32); err != nil || n > 0o7777 {
			q.fail("mode", mode, "a mode is an octal number up to 7777")
		}
		v.Set("mode", mode)
	}
	if err := q.done(); err != nil {
		return err
	}
	return s.upload(w, r, "/files", v, new(guest.Entry))
}

func (s *Server) putTar(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	v := fileQuery(q)
	if err := q.done(); err != nil {
		return err
	}
	return s.upload(w, r, "/tar", v, nil)
}

// upload passes a request's body on and answers with out, or nothing when that
// is nil.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, path string, v url.Values, out any) error {
	g, err := s.m.Guest(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	in, t, err := inflow(w, r)
	if err != nil {
		return err
	}
	if t == nil {
		err = g.Upload(r.Context(), path, v, r.Body, r.ContentLength, out)
	} else {
		w = t.answer()
		defer t.end()
		err = g.Upload(r.Context(), path, v, in, r.ContentLength, out)
		if err != nil {
			s.fail(w, r, err)
			return nil
		}
	}
	if out == nil {
		return noContent(w, err)
	}
	return answer(w, http.StatusOK, out, err)
}
