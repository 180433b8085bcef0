package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/relay"
	"github.com/belljar-sh/belljar/sandbox"
)

// Guest reaches the guest of one running sandbox. What comes from it is
// hostile: replies are bounded and checked before they are passed on.
type Guest struct {
	m   *Manager
	e   *entry
	rt  http.RoundTripper
	gen uint64
}

// Guest returns the guest of a sandbox that is running. A paused one is resumed
// first; of many callers at once all wait for the one resume. In any other
// state a [sandbox.Conflict] tells which and why.
func (m *Manager) Guest(ctx context.Context, ref string) (*Guest, error) {
	e, err := m.find(ref)
	if err != nil {
		return nil, err
	}
	return m.reach(e, func() error { return m.awake(ctx, e) })
}

// again makes a request that may be made twice, anew when a pause came in
// between, and returns the guest that has answered.
func (m *Manager) again(ctx context.Context, ref string, request func(g *Guest) error) (*Guest, error) {
	for {
		g, err := m.Guest(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err = request(g); err == nil || ctx.Err() != nil || sandbox.KindOf(err) != sandbox.Unavailable || !g.outlived() {
			return g, err
		}
	}
}

// onlooker is Guest for those who only look on: it waits for a paused sandbox,
// and it is for others to resume it.
func (m *Manager) onlooker(ctx context.Context, ref string) (*Guest, error) {
	e, err := m.find(ref)
	if err != nil {
		return nil, err
	}
	return m.reach(e, func() error { return e.running(ctx) })
}

// reach returns the guest once wait has seen the sandbox running.
func (m *Manager) reach(e *entry, wait func() error) (*Guest, error) {
	for {
		if err := wait(); err != nil {
			return nil, err
		}
		g, err := m.guest(e)
		if err == nil || !e.snapshot().State.Rests() {
			return g, err
		}
	}
}

// guest is Guest without waiting.
func (m *Manager) guest(e *entry) (*Guest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sb := e.rec.Sandbox
	if sb.State != sandbox.Running {
		return nil, notRunning(sb)
	}
	return &Guest{m: m, e: e, rt: e.keeper.Guest(e.id, sb.Generation), gen: sb.Generation}, nil
}

func notRunning(sb sandbox.Sandbox) error {
	e := sandbox.Errorf(sandbox.Conflict, "the sandbox is %s", sb.State).WithField("sandbox", string(sb.ID))
	switch {
	case sb.EndMessage != "":
		e = e.WithHint("it ended (%s): %s", sb.EndReason, sb.EndMessage)
	case sb.EndReason != "":
		e = e.WithHint("it ended: %s", sb.EndReason)
	}
	return e
}

// directer is a way to a guest that has connections for one request each. The
// body of an answer is then a [relayed].
type directer interface {
	Direct(*http.Request) (*http.Response, error)
}

// relayed is a body that can be moved without being read.
type relayed interface {
	Source() (relay.Source, bool)
}

// Request is one request to a guest.
type Request struct {
	Method string
	Path   string // as guest/wire says, beneath /v1
	Query  url.Values
	Header http.Header
	Body   io.Reader
	Size   int64 // of Body, -1: unknown
	// Direct asks for a connection of its own, whose stream a relay can take
	// over. Body may then be a [*relay.Inflow].
	Direct bool
}

// send sends a request as it is.
func (g *Guest) send(ctx context.Context, q Request) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "guest", Path: "/v1" + q.Path, RawQuery: q.Query.Encode()}
	req, err := http.NewRequestWithContext(ctx, q.Method, u.String(), q.Body)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the request cannot be built: %w", err)
	}
	if q.Header != nil {
		req.Header = q.Header
	}
	req.Header.Set(guest.HeaderGeneration, strconv.FormatUint(g.gen, 10))
	if q.Body != nil {
		req.ContentLength = q.Size
		if q.Size == 0 {
			req.Body = http.NoBody // 0 with a body would mean "unknown"
		}
	}
	send := g.rt.RoundTrip
	if d, ok := g.rt.(directer); ok && q.Direct {
		send = d.Direct
	}
	return send(req)
}

// Do sends a request and returns an answer with a status below 400, whose body
// the caller closes. Anything else is an error.
func (g *Guest) Do(ctx context.Context, q Request) (*http.Response, error) {
	resp, err := g.send(ctx, q)
	if err != nil {
		return nil, g.explain(ctx, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, g.explain(ctx, guestError(resp))
	}
	return resp, nil
}

// JSON sends in, when it is not nil, and decodes the answer into out, when
// that is not nil. Lists are for [List].
func (g *Guest) JSON(ctx context.Context, method, path string, query url.Values, in, out any) error {
	q := Request{Method: method, Path: path, Query: query}
	if in != nil {
		b, err := guest.JSONBody(in)
		if err != nil {
			return err
		}
		q.Body, q.Size, q.Header = b.Reader, b.Size, b.Header
	}
	resp, err := g.Do(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return g.decode(ctx, resp, out)
}

// badGuest is the error of an answer that no honest guest gives.
func badGuest(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Internal, "the guest gave "+format, args...).
		WithHint("something inside has damaged or replaced the guest; do not trust this sandbox")
}

// guestError decodes the error of an answer. Kind and lengths are checked; the
// sentences are the guest's.
func guestError(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	var body guest.ErrorBody
	if guest.Decode(b, &body) == nil {
		if e := guest.CheckError(body.Error); e != nil {
			return e
		}
	}
	return badGuest("status %d without saying why", resp.StatusCode)
}

// settleTime is how long a failed request waits to learn whether its sandbox
// has ended: the channel breaks a moment before the keeper says so.
const settleTime = 2 * time.Second

// explain turns the failure of a request into what its caller should know: a
// sandbox that has ended says so.
func (g *Guest) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	var e *sandbox.Error
	known := errors.As(err, &e)
	switch {
	case known && e.Kind == sandbox.Unavailable, !known:
		if !g.settled(ctx, settleTime) {
			if known {
				return e
			}
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
		}
	case e.Kind == sandbox.NotFound, e.Kind == sandbox.Conflict:
		wait := time.Duration(0)
		if e.Field == "id" && e.Value == string(g.e.id) { // the keeper's word of the sandbox, not the guest's of something in it
			wait = settleTime
		}
		if !g.settled(ctx, wait) {
			return e
		}
	default:
		return e
	}
	sb := g.e.snapshot()
	if sb.State.Rests() {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox was paused during the request").WithField("sandbox", string(sb.ID)).
			WithHint("try again: the next request resumes it").WithCause(err)
	}
	return notRunning(sb)
}

// settled reports whether the sandbox has left Running, waiting up to d.
func (g *Guest) settled(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		sb, changed := g.e.watch()
		if sb.State != sandbox.Running || sb.Generation != g.gen {
			return true
		}
		select {
		case <-changed:
		case <-t.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// outlived reports whether the sandbox has been paused since the guest was
// reached.
func (g *Guest) outlived() bool {
	sb := g.e.snapshot()
	return sb.State.Rests() || sb.State == sandbox.Running && sb.Generation != g.gen
}

// Put is [Guest.Upload] of a file with extended attributes of the user's.
func (g *Guest) Put(ctx context.Context, query url.Values, meta map[string]string, body io.Reader, size int64, out *guest.Entry) error {
	h := http.Header{}
	if len(meta) > 0 {
		b, err := json.Marshal(meta)
		if err != nil {
			return sandbox.Errorf(sandbox.Invalid, "metadata cannot be encoded: %w", err)
		}
		h.Set(guest.HeaderMeta, string(b))
	}
	return g.upload(ctx, "/files", query, h, body, size, out)
}

// Upload streams body to the guest and decodes the answer into out, when that
// is not nil.
func (g *Guest) Upload(ctx context.Context, path string, query url.Values, body io.Reader, size int64, out any) error {
	return g.upload(ctx, path, query, http.Header{}, body, size, out)
}

func (g *Guest) upload(ctx context.Context, path string, query url.Values, h http.Header, body io.Reader, size int64, out any) error {
	h.Set("Content-Type", "application/octet-stream")
	resp, err := g.Do(ctx, Request{
		Method: http.MethodPut, Path: path, Query: query, Header: h, Body: body, Size: size, Direct: isInflow(body),
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return g.decode(ctx, resp, out)
}

func isInflow(body io.Reader) bool {
	_, ok := body.(*relay.Inflow)
	return ok
}

// Env returns the environment that every process of the sandbox begins with:
// the guest's word.
func Env(ctx context.Context, g *Guest) (map[string]string, error) {
	env := map[string]string{}
	if err := g.JSON(ctx, http.MethodGet, "/env", nil, nil, &env); err != nil {
		return nil, err
	}
	return env, nil
}
