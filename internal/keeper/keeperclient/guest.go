package keeperclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	// idleTime is how long a connection waits for the next request.
	idleTime = 30 * time.Second
	maxIdle  = 8 // connections per sandbox
	// copyChunk is what is read at once of a request's body: each is a frame
	// on its way to the guest, and the guest pays by the frame.
	copyChunk = 256 << 10
)

var chunks = sync.Pool{New: func() any { return new([copyChunk]byte) }}

// Guest reaches one generation of one sandbox, with a connection of its own
// for each request under way. Requests have paths as in guest/wire ("/v1/...");
// scheme and host do not matter. It is safe for concurrent use and good until
// the sandbox is deleted.
type Guest struct {
	dir  string
	base string
	rt   *http.Transport
}

var _ http.RoundTripper = (*Guest)(nil)

// Guest returns the way to a guest. It does not dial.
func (c *Client) Guest(id sandbox.ID, generation uint64) *Guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.guests[id]
	if t == nil {
		t = c.transport()
		c.guests[id] = t
	}
	return &Guest{dir: c.dir, base: fmt.Sprintf("/guest/%s/%d", url.PathEscape(string(id)), generation), rt: t}
}

func (c *Client) transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return sock.Dial(ctx, c.dir, wire.SocketName)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTime,
	}
}

// drop lets go of a sandbox that is no more. Answers that are still being read
// end by themselves.
func (c *Client) drop(id sandbox.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.guests[id]; t != nil {
		t.CloseIdleConnections()
	}
	delete(c.guests, id)
}

// RoundTrip sends a request to the guest. Its errors are [*sandbox.Error].
// Answers with a status of 400 or more are the guest's or the keeper's, with
// an ErrorBody either way.
func (g *Guest) RoundTrip(r *http.Request) (*http.Response, error) {
	u := *r.URL
	u.Scheme, u.Host = "http", "keeper"
	u.RawPath = g.base + r.URL.EscapedPath()
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the path cannot be understood").WithField("path", r.URL.Path)
	}
	u.Path = path
	out := *r // the caller's request stays as it is
	out.URL, out.Host = &u, "keeper"
	if r.Body != nil && r.Body != http.NoBody {
		out.Body = &upload{r.Body}
	}
	resp, err := g.rt.RoundTrip(&out)
	if err != nil {
		return nil, explain(r.Context(), err)
	}
	return resp, nil
}

// Base returns the path that RoundTrip puts before a request's own.
func (g *Guest) Base() string { return g.base }

func explain(ctx context.Context, err error) error {
	var e *sandbox.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the sandbox did not answer in time").WithCause(err)
	case ctx.Err() != nil:
		return sandbox.Errorf(sandbox.Canceled, "the request was given up").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the keeper broke off before it answered").WithCause(err)
}

// upload is a body that is sent in large pieces, each as soon as it is there.
type upload struct{ io.ReadCloser }

// WriteTo implements io.WriterTo, which net/http prefers to its own small
// buffer.
func (u *upload) WriteTo(w io.Writer) (n int64, err error) {
	buf := chunks.Get().(*[copyChunk]byte)
	defer chunks.Put(buf)
	for {
		got, rerr := u.Read(buf[:])
		if got > 0 {
			put, werr := w.Write(buf[:got])
			n += int64(put)
			if werr != nil {
				return n, werr
			}
		}
		if errors.Is(rerr, io.EOF) {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}
