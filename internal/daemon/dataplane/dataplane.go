// Package dataplane carries requests of the E2B wire to the sandboxes of a
// manager: it implements the contracts that internal/e2b asks for, and nothing
// of the wire itself.
package dataplane

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/e2b"
	"github.com/belljar-sh/belljar/internal/e2b/files"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// Sandboxes are those of one manager.
type Sandboxes struct{ m *manager.Manager }

// New returns the sandboxes of m.
func New(m *manager.Manager) *Sandboxes { return &Sandboxes{m} }

// Running returns a sandbox that runs, or that runs again with the first request
// that needs it.
func (s *Sandboxes) Running(id sandbox.ID) (e2b.Guest, error) {
	sb, err := s.m.Get(string(id))
	if err != nil {
		return nil, err
	}
	if sb.ID != id || sb.State != sandbox.Running && !sb.State.Rests() { // names are not taken here
		return nil, sandbox.Errorf(sandbox.Unavailable, "no such sandbox runs").WithField("sandbox", string(id))
	}
	return &reached{m: s.m, sb: sb}, nil
}

// reached is one sandbox.
type reached struct {
	m  *manager.Manager
	sb sandbox.Sandbox // as it was when it was first reached
}

var _ e2b.Guest = (*reached)(nil)

func (r *reached) ref() string { return string(r.sb.ID) }

// gone turns the error of a request to a sandbox that has ended into
// Unavailable, whatever the request came to.
func (r *reached) gone(err error) error {
	if err == nil {
		return nil
	}
	if now, gerr := r.m.Get(r.ref()); gerr != nil || now.State != sandbox.Running && !now.State.Rests() {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox has ended").WithField("sandbox", r.ref()).WithCause(err)
	}
	return err
}

func (r *reached) Workdir() string { return r.sb.Workdir }

func (r *reached) StartedAt() time.Time { return r.sb.StartedAt }

// Env returns the environment that every process of the sandbox begins with:
// the guest's word.
func (r *reached) Env(ctx context.Context) (map[string]string, error) {
	g, err := r.m.Guest(ctx, r.ref())
	if err != nil {
		return nil, r.gone(err)
	}
	env, err := manager.Env(ctx, g)
	return env, r.gone(err)
}

func (r *reached) Usage(ctx context.Context) (time.Duration, guest.Metrics, error) {
	st, err := r.m.Stats(ctx, r.ref())
	if err != nil {
		return 0, guest.Metrics{}, r.gone(err)
	}
	if st.Guest == nil {
		return st.Host.CPUTime, guest.Metrics{}, sandbox.Errorf(sandbox.Unavailable, "the guest does not say what it counts")
	}
	return st.Host.CPUTime, *st.Guest, nil
}

func (r *reached) Start(ctx context.Context, s *guest.Start) (io.ReadCloser, error) {
	body, err := r.m.StartOutput(ctx, r.ref(), manager.Start{Start: *s})
	return body, r.gone(err)
}

func (r *reached) Output(ctx context.Context, id string, stdout, stderr int64) (io.ReadCloser, error) {
	body, err := r.m.Output(ctx, r.ref(), id, stdout, stderr)
	return body, r.gone(err)
}

func (r *reached) Processes(ctx context.Context) ([]guest.Process, error) {
	list, err := r.m.Processes(ctx, r.ref())
	return list, r.gone(err)
}

func (r *reached) Process(ctx context.Context, id string) (guest.Process, error) {
	p, err := r.m.Process(ctx, r.ref(), id)
	return p, r.gone(err)
}

func (r *reached) Ack(ctx context.Context, id string, a guest.Ack) error {
	return r.gone(r.m.Ack(ctx, r.ref(), id, a))
}

func (r *reached) Resize(ctx context.Context, id string, size guest.PTYSize) error {
	return r.gone(r.m.Resize(ctx, r.ref(), id, size))
}

func (r *reached) Signal(ctx context.Context, id string, s guest.Signal) error {
	return r.gone(r.m.Signal(ctx, r.ref(), id, s))
}

func (r *reached) Input(ctx context.Context, id string, data []byte, eof bool) error {
	_, err := r.m.Stdin(ctx, r.ref(), id, manager.FromHere, bytes.NewReader(data), int64(len(data)), eof)
	return r.gone(err)
}

// entry asks for one entry.
func (r *reached) entry(ctx context.Context, method, route string, q url.Values) (guest.Entry, error) {
	var e guest.Entry
	g, err := r.m.Guest(ctx, r.ref())
	if err == nil {
		err = g.JSON(ctx, method, route, q, nil, &e)
	}
	return e, r.gone(err)
}

func query(path, user string, more ...string) url.Values {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	for i := 0; i+1 < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return q
}

func (r *reached) Stat(ctx context.Context, path, user string) (guest.Entry, error) {
	return r.entry(ctx, http.MethodGet, "/stat", query(path, user, "resolve", "1"))
}

func (r *reached) Mkdir(ctx context.Context, path, user string) (guest.Entry, error) {
	return r.entry(ctx, http.MethodPost, "/mkdir", query(path, user))
}

func (r *reached) Move(ctx context.Context, path, to, user string) (guest.Entry, error) {
	return r.entry(ctx, http.MethodPost, "/move", query(path, user, "to", to, "resolve", "1"))
}

func (r *reached) List(ctx context.Context, path, user string, depth int) ([]guest.Entry, error) {
	g, err := r.m.Guest(ctx, r.ref())
	if err != nil {
		return nil, r.gone(err)
	}
	out, err := manager.List[guest.Entry](ctx, g, "/dir", query(path, user, "resolve", "1", "depth", strconv.Itoa(depth)), manager.MaxEntries)
	return out, r.gone(err)
}

func (r *reached) Remove(ctx context.Context, path, user string) error {
	g, err := r.m.Guest(ctx, r.ref())
	if err == nil {
		err = g.JSON(ctx, http.MethodDelete, "/files", query(path, user), nil, nil)
	}
	return r.gone(err)
}

func (r *reached) Open(ctx context.Context, path, user string, from int64) (*files.File, error) {
	g, err := r.m.Guest(ctx, r.ref())
	if err != nil {
		return nil, r.gone(err)
	}
	req := manager.Request{Method: http.MethodGet, Path: "/files", Query: query(path, user), Header: http.Header{}}
	if from > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	resp, err := g.Do(ctx, req)
	if err != nil {
		return nil, r.gone(err)
	}
	if from > 0 && resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "the guest did not send the part of the file that was asked for")
	}
	f := &files.File{ReadCloser: resp.Body, Size: resp.ContentLength}
	if at, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		f.ModTime = at
	}
	return f, nil
}

func (r *reached) Put(ctx context.Context, path, user string, meta map[string]string, body io.Reader, size int64) (guest.Entry, error) {
	var e guest.Entry
	g, err := r.m.Guest(ctx, r.ref())
	if err == nil {
		err = g.Put(ctx, query(path, user), meta, body, size, &e)
	}
	return e, r.gone(err)
}

func (r *reached) Watch(ctx context.Context, path, user string, recursive, local bool) (io.ReadCloser, error) {
	g, err := r.m.Guest(ctx, r.ref())
	if err != nil {
		return nil, r.gone(err)
	}
	q := query(path, user)
	if recursive {
		q.Set("recursive", "1")
	}
	if local {
		q.Set("local", "1")
	}
	resp, err := g.Do(ctx, manager.Request{Method: http.MethodGet, Path: "/watch", Query: q})
	if err != nil {
		return nil, r.gone(err)
	}
	return resp.Body, nil
}
