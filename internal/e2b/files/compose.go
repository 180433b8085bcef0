package files

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on a request to compose a file.
const (
	maxComposeBody = 1 << 20
	maxSources     = 1024
)

// composition is such a request.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose writes one file from several, one after another, and removes these.
// The destination is whole or as it was.
func (s *Service) compose(w http.ResponseWriter, r *http.Request) {
	var c composition
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBody)).Decode(&c); err != nil {
		reply.Fail(w, http.StatusBadRequest, "the request is not the JSON that is expected here")
		return
	}
	if len(c.Sources) == 0 || len(c.Sources) > maxSources || c.Destination == "" {
		reply.Fail(w, http.StatusBadRequest, "1 to 1024 source_paths and a destination are needed")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	in := &chain{s: s, ctx: ctx, user: c.Username, left: c.Sources}
	e, err := s.g.Put(ctx, s.place(c.Destination), c.Username, nil, in, -1)
	cancel()
	at, broke := in.end()
	switch {
	case broke != nil:
		s.fail(w, r, at, c.Username, broke)
		return
	case err != nil:
		s.fail(w, r, c.Destination, c.Username, err)
		return
	}
	for _, p := range c.Sources {
		if s.place(p) == s.place(c.Destination) {
			continue
		}
		if err := s.g.Remove(r.Context(), s.place(p), c.Username); err != nil && sandbox.KindOf(err) != sandbox.NotFound {
			s.fail(w, r, p, c.Username, err)
			return
		}
	}
	reply.JSON(w, http.StatusOK, wrote(&e, nil))
}

// chain reads files of the sandbox one after another. A transport may read on
// when its request has failed.
type chain struct {
	s    *Service
	ctx  context.Context
	user string

	mu   sync.Mutex
	over bool
	left []string
	at   string // the one that is being read
	body io.ReadCloser
	err  error
}

// Read implements io.Reader.
func (c *chain) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, io.ErrClosedPipe
	}
	for {
		if c.body == nil {
			if len(c.left) == 0 {
				return 0, io.EOF
			}
			c.at, c.left = c.left[0], c.left[1:]
			f, err := c.s.g.Open(c.ctx, c.s.place(c.at), c.user, 0)
			if err != nil {
				c.err = err
				return 0, err
			}
			c.body = f
		}
		n, err := c.body.Read(p)
		if err == io.EOF {
			c.close()
			err = nil
		}
		if err != nil {
			c.err = err
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// end lets go of what is open, and returns the error of reading, if any, and
// of which file.
func (c *chain) end() (at string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.close()
	return c.at, c.err
}

// close is for holders of mu.
func (c *chain) close() {
	if c.body != nil {
		_ = c.body.Close()
		c.body = nil
	}
}
