package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"syscall"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Base is the path beneath which the API is served.
const Base = "/belljar/v1"

// maxReply bounds a JSON answer.
const maxReply = 32 << 20

// Client speaks the public API over one transport.
type Client struct {
	rt http.RoundTripper
}

// New returns a client that sends its requests through rt. The host part of
// their URLs is "belljar" and means nothing.
func New(rt http.RoundTripper) *Client { return &Client{rt: rt} }

// Close gives back idle connections. Requests that are under way go on.
func (c *Client) Close() {
	if t, ok := c.rt.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// request is one call of the API.
type request struct {
	method string
	path   string // beneath Base, escaped
	query  url.Values
	body   io.Reader
	size   int64 // of body; -1 when unknown
	header http.Header
}

// send performs r and returns the answer when its status is below 400. The
// caller closes its body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	u := "http://belljar" + Base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, r.body)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the request cannot be built: %w", err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if r.body != nil && r.size >= 0 {
		req.ContentLength = r.size
	}
	resp, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, replyError(resp)
	}
	return resp, nil
}

// call sends in as JSON and decodes the answer into out; either may be nil. A
// GET whose connection broke is sent once more: the daemon may just have been
// replaced.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	err := c.callOnce(ctx, method, path, query, in, out)
	if method == http.MethodGet && broken(err) && ctx.Err() == nil {
		err = c.callOnce(ctx, method, path, query, in, out)
	}
	return err
}

func (c *Client) callOnce(ctx context.Context, method, path string, query url.Values, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		b, err := wire.JSONBody(in)
		if err != nil {
			return err
		}
		r.body, r.size, r.header = b.Reader, b.Size, b.Header
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply))
		return err
	}
	return decodeReply(ctx, resp.Body, out)
}

func decodeReply(ctx context.Context, body io.Reader, out any) error {
	b, err := io.ReadAll(io.LimitReader(body, maxReply+1))
	if err != nil {
		return transportError(ctx, err)
	}
	if len(b) > maxReply {
		return sandbox.Errorf(sandbox.Internal, "the answer exceeds %d bytes", maxReply)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return sandbox.Errorf(sandbox.Internal, "the answer is not what the API promises: %w", err)
	}
	return nil
}

// errTransport marks errors after which the same request may be sent again
// over a new connection.
var errTransport = errors.New("the connection to the Belljar API broke")

type brokenError struct{ err error }

func (b *brokenError) Error() string   { return b.err.Error() }
func (b *brokenError) Unwrap() []error { return []error{errTransport, b.err} }

// transportError classes what a transport returned.
func transportError(ctx context.Context, err error) error {
	var e *sandbox.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTransport):
		return err
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the time for the request is over").WithCause(err)
	case ctx.Err() != nil:
		return sandbox.Errorf(sandbox.Canceled, "the request was given up").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the Belljar API cannot be reached: %v", err).
		WithCause(&brokenError{err})
}

// broken reports whether err came from the transport and not from the API:
// the connection broke, or nobody serves for the moment.
func broken(err error) bool {
	return errors.Is(err, errTransport) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// replyError decodes the error in an answer of 400 or more.
func replyError(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var body wire.ErrorBody
	if err == nil && json.Unmarshal(b, &body) == nil && body.Error != nil && body.Error.Kind != "" {
		return body.Error
	}
	return sandbox.Errorf(sandbox.Internal, "the API answered %s without saying why", resp.Status)
}
