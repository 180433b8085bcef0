// Package guestclient is the host's side of internal/guest/wire: a typed
// method for every request. What comes back was written by a guest and is
// treated so: sizes are bounded, errors and frames are checked, and nothing of
// it decides anything.
package guestclient

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on what a guest may answer.
const (
	maxReply   = 1 << 20
	maxListing = 128 << 20
	maxError   = 64 << 10
)

// Client asks one generation of one guest. It is safe for concurrent use.
type Client struct {
	rt   http.RoundTripper
	base string
	gen  string
}

// New returns a client that sends its requests through rt to URLs that begin
// with base, for instance "http://guest" on a channel or the keeper's
// "http://keeper/guest/ID/GENERATION", as generation.
func New(rt http.RoundTripper, base string, generation uint64) *Client {
	return &Client{rt: rt, base: base, gen: strconv.FormatUint(generation, 10)}
}

// call is one request.
type call struct {
	method string
	path   string
	query  url.Values
	header http.Header
	body   io.Reader
	length int64 // of body, -1: unknown
}

// open sends c and returns the response when it is a good one. The caller
// closes its body.
func (c *Client) open(ctx context.Context, q call) (*http.Response, error) {
	target := c.base + "/v1" + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, target, q.body)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "a request to the sandbox cannot be made: %w", err)
	}
	for k, v := range q.header {
		req.Header[k] = v
	}
	req.Header.Set(wire.HeaderGeneration, c.gen)
	if q.body != nil && q.length >= 0 {
		req.ContentLength = q.length
	}
	resp, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

func transportError(ctx context.Context, err error) error {
	switch ctx.Err() {
	case context.Canceled:
		return sandbox.Errorf(sandbox.Canceled, "the request was given up").WithCause(err)
	case context.DeadlineExceeded:
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the sandbox did not answer in time").WithCause(err)
	}
	if k := sandbox.KindOf(err); k != sandbox.Internal {
		return err
	}
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer").WithCause(err)
}

func readError(resp *http.Response) error {
	var body wire.ErrorBody
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	if err != nil || body.Error == nil {
		kind := sandbox.Internal
		if resp.StatusCode == http.StatusRequestHeaderFieldsTooLarge {
			kind = sandbox.Invalid
		}
		return sandbox.Errorf(kind, "the sandbox answered with status %d", resp.StatusCode)
	}
	return sanitize(body.Error)
}

// sanitize bounds an error that a guest has written; one of an unknown kind
// becomes Internal.
func sanitize(e *sandbox.Error) *sandbox.Error {
	if out := wire.CheckError(e); out != nil {
		return out
	}
	return sandbox.Errorf(sandbox.Internal, "the sandbox answered with an error of no known kind")
}

// do sends c and decodes the reply into out, which may be nil.
func (c *Client) do(ctx context.Context, q call, out any) error {
	return c.doMax(ctx, q, out, maxReply)
}

func (c *Client) doMax(ctx context.Context, q call, out any, limit int64) error {
	resp, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return transportError(ctx, err)
	}
	if int64(len(b)) > limit {
		return sandbox.Errorf(sandbox.ResourceExhausted, "the sandbox's answer exceeds %d bytes", limit)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return sandbox.Errorf(sandbox.Internal, "the sandbox's answer is not what the protocol says").WithCause(err)
	}
	return nil
}

func jsonCall(method, path string, v any) (call, error) {
	b, err := wire.JSONBody(v)
	return call{method: method, path: path, body: b.Reader, length: b.Size, header: b.Header}, err
}

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	q, err := jsonCall(http.MethodPost, path, in)
	if err != nil {
		return err
	}
	return c.do(ctx, q, out)
}

// Hello gives the guest its identity. The reply is the guest's own word.
func (c *Client) Hello(ctx context.Context, h wire.Hello) (wire.HelloReply, error) {
	var r wire.HelloReply
	err := c.post(ctx, "/hello", h, &r)
	if r.StartError != nil {
		r.StartError = sanitize(r.StartError)
	}
	return r, err
}

// Quiesce ends all streams and has the guest write its files back; it serves
// nothing more until the next Hello.
func (c *Client) Quiesce(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/quiesce"}, nil)
}

// Ping asks whether the guest serves this generation.
func (c *Client) Ping(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/ping"}, nil)
}

// Metrics returns what the guest counts inside: unverified.
func (c *Client) Metrics(ctx context.Context) (wire.Metrics, error) {
	var m wire.Metrics
	err := c.do(ctx, call{method: http.MethodGet, path: "/metrics"}, &m)
	return m, err
}

// Start begins a process. It is idempotent: the same request again returns the
// same process.
func (c *Client) Start(ctx context.Context, s wire.Start) (wire.Process, error) {
	var p wire.Process
	err := c.post(ctx, "/processes", s, &p)
	return p, err
}

// Processes lists the processes that Start began.
func (c *Client) Processes(ctx context.Context) ([]wire.Process, error) {
	var p []wire.Process
	err := c.doMax(ctx, call{method: http.MethodGet, path: "/processes"}, &p, maxListing)
	return p, err
}

// Process returns one process.
func (c *Client) Process(ctx context.Context, id string) (wire.Process, error) {
	var p wire.Process
	err := c.do(ctx, call{method: http.MethodGet, path: "/processes/" + url.PathEscape(id)}, &p)
	return p, err
}

// Ack tells that output has been taken for good.
func (c *Client) Ack(ctx context.Context, id string, a wire.Ack) error {
	return c.post(ctx, "/processes/"+url.PathEscape(id)+"/ack", a, nil)
}

// Stdin sends body to the process's standard input, as the bytes from offset
// on, and then the end of file if eof is set. It returns how many bytes the
// process's pipe has taken in all.
func (c *Client) Stdin(ctx context.Context, id string, offset int64, body io.Reader, eof bool) (int64, error) {
	q := call{
		method: http.MethodPost, path: "/processes/" + url.PathEscape(id) + "/stdin",
		query: url.Values{"offset": {strconv.FormatInt(offset, 10)}}, body: body, length: -1,
	}
	if eof {
		q.header = http.Header{wire.HeaderEOF: {"1"}}
	}
	var r wire.StdinReply
	err := c.do(ctx, q, &r)
	return r.Offset, err
}

// Resize sets the size of the process's terminal.
func (c *Client) Resize(ctx context.Context, id string, size wire.PTYSize) error {
	return c.post(ctx, "/processes/"+url.PathEscape(id)+"/resize", size, nil)
}

// Signal sends a signal to the process's group, or to its whole tree.
func (c *Client) Signal(ctx context.Context, id string, s wire.Signal) error {
	return c.post(ctx, "/processes/"+url.PathEscape(id)+"/signal", s, nil)
}

// Kill ends the process with all its descendants and forgets it. When it
// returns nil nothing of the tree is left.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/processes/" + url.PathEscape(id)}, nil)
}

// DefaultTimeout bounds the requests that clean up after a stream, whose own
// context is over by then.
const DefaultTimeout = 5 * time.Second
