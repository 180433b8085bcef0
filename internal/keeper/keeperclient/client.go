// Package keeperclient is the manager's side of a keeper: typed methods for
// every route of keeper/wire, descriptors over the second socket, and a round
// tripper to each guest.
//
// Each request to a guest has a connection of its own, so that what one guest
// does to its answers holds up no other.
package keeperclient

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxAnswer bounds the JSON body of an answer.
const maxAnswer = 16 << 20

// Client speaks with one keeper. It is safe for concurrent use. It dials when
// it is first used and again after a connection has ended.
type Client struct {
	dir string

	mu     sync.Mutex
	closed bool
	main   *link
	guests map[sandbox.ID]*http.Transport
}

// New returns a client of the keeper whose directory is dir. It does not dial.
func New(dir string) *Client {
	return &Client{dir: dir, main: &link{dir: dir}, guests: map[sandbox.ID]*http.Transport{}}
}

// Dir returns the keeper's directory.
func (c *Client) Dir() string { return c.dir }

// Close ends every connection. Sandboxes live on.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.main.close()
	for _, l := range c.guests {
		l.CloseIdleConnections()
	}
	return nil
}

// Done is closed when the connection that Hello or another method has made
// ends: with the keeper, or with Close. It dials when there is none.
func (c *Client) Done(ctx context.Context) (<-chan struct{}, error) {
	l, err := c.main.get(ctx)
	if err != nil {
		return nil, err
	}
	return l.Done(), nil
}

// Hello asks who serves, and checks protocol and build: programs of different
// builds give a Conflict error.
func (c *Client) Hello(ctx context.Context) (wire.Hello, error) {
	var h wire.Hello
	if err := c.call(ctx, http.MethodGet, "/keeper/v1/hello", nil, &h); err != nil {
		return h, err
	}
	if h.Protocol != wire.Protocol || h.Build != build.ID() {
		return h, sandbox.Errorf(sandbox.Conflict, "belljar-engine is of another build than this program (%s)", build.ID()).
			WithField("build", h.Build).WithHint("install the programs together: make install")
	}
	return h, nil
}

// Create builds a sandbox and says hello to its guest. When ctx ends first the
// keeper undoes what it has begun.
func (c *Client) Create(ctx context.Context, req *wire.Create) (*wire.Created, error) {
	var out wire.Created
	if err := c.call(ctx, http.MethodPost, "/keeper/v1/sandboxes", req, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Claim gives a parked sandbox its name and identity. When ctx ends first the
// keeper ends it.
func (c *Client) Claim(ctx context.Context, parked sandbox.ID, req *wire.Claim) (*wire.Created, error) {
	var out wire.Created
	if err := c.call(ctx, http.MethodPost, "/keeper/v1/sandboxes/"+url.PathEscape(string(parked))+"/claim", req, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// List returns the status of every sandbox, in the order of their IDs.
func (c *Client) List(ctx context.Context) ([]wire.Status, error) {
	var out []wire.Status
	err := c.call(ctx, http.MethodGet, "/keeper/v1/sandboxes", nil, &out)
	return out, err
}

// Status returns where one sandbox stands; NotFound when the keeper has it not.
func (c *Client) Status(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	return c.statusCall(ctx, http.MethodGet, id, "")
}

// Wait returns when the sandbox has ended.
func (c *Client) Wait(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	return c.statusCall(ctx, http.MethodGet, id, "/wait")
}

// Delete kills a sandbox and gives everything back. It is idempotent. A nil
// error means that nothing of it is left on the host.
func (c *Client) Delete(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	s, err := c.statusCall(ctx, http.MethodDelete, id, "")
	if err == nil {
		c.drop(id)
	}
	return s, err
}

func (c *Client) statusCall(ctx context.Context, method string, id sandbox.ID, suffix string) (wire.Status, error) {
	var s wire.Status
	err := c.call(ctx, method, "/keeper/v1/sandboxes/"+url.PathEscape(string(id))+suffix, nil, &s)
	return s, err
}

// Stats returns what a sandbox uses, as the host counts it.
func (c *Client) Stats(ctx context.Context, id sandbox.ID) (sandbox.Stats, error) {
	var s sandbox.Stats
	err := c.call(ctx, http.MethodGet, "/keeper/v1/sandboxes/"+url.PathEscape(string(id))+"/stats", nil, &s)
	return s, err
}

// Changes streams the list of what a sandbox has changed in its root, in the form
// that package filetree reads. The bytes are the guest's.
func (c *Client) Changes(ctx context.Context, id sandbox.ID) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://keeper/keeper/v1/sandboxes/"+url.PathEscape(string(id))+"/changes", nil)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the request cannot be made: %w", err)
	}
	resp, err := c.Guest(id, 0).rt.RoundTrip(r)
	if err != nil {
		return nil, explain(ctx, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Unavailable, "the keeper broke off its answer: %w", err)
		}
		return nil, decodeError(resp.StatusCode, answer)
	}
	return resp.Body, nil
}

// Stop ends the keeper. Without drain it returns when every sandbox has been
// removed, and the client is closed; with drain the keeper takes no new ones
// and ends after its last.
func (c *Client) Stop(ctx context.Context, drain bool) error {
	path := "/keeper/v1/stop"
	if drain {
		path += "?drain=1"
	}
	if err := c.call(ctx, http.MethodPost, path, nil, nil); err != nil || drain {
		return err
	}
	return c.Close() // the keeper waits for its clients to leave
}

// Probe asks every driver of the keeper what this host offers.
func (c *Client) Probe(ctx context.Context) ([]driver.Report, error) {
	var out []driver.Report
	err := c.call(ctx, http.MethodGet, "/keeper/v1/probe", nil, &out)
	return out, err
}

// call does one exchange of JSON. in and out may be nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := guest.JSONBody(in)
		if err != nil {
			return err
		}
		body = b.Reader
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://keeper"+path, body)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the request cannot be made: %w", err)
	}
	resp, err := c.main.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the keeper broke off its answer: %w", err)
	}
	if resp.StatusCode >= 400 {
		return decodeError(resp.StatusCode, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return sandbox.Errorf(sandbox.Internal, "the keeper's answer cannot be understood: %w", err)
	}
	return nil
}

func decodeError(status int, body []byte) error {
	var e wire.ErrorBody
	if json.Unmarshal(body, &e) == nil && e.Error != nil && e.Error.Kind != "" {
		return e.Error
	}
	return sandbox.Errorf(sandbox.Internal, "the keeper answered with status %d", status)
}

// link is one connection to the keeper, made when needed.
type link struct {
	dir string

	mu     sync.Mutex
	conn   *channel.Local
	closed bool
}

func (l *link) get(ctx context.Context) (*channel.Local, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the client has been closed")
	}
	if l.conn != nil {
		select {
		case <-l.conn.Done():
			l.conn.Close()
			l.conn = nil
		default:
			return l.conn, nil
		}
	}
	c, err := sock.Dial(ctx, l.dir, wire.SocketName)
	if err != nil {
		return nil, err
	}
	l.conn, err = channel.DialLocal(c)
	return l.conn, err
}

// RoundTrip sends a request over the link.
func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	c, err := l.get(r.Context())
	if err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, sandbox.AsError(err)
	}
	return c.RoundTrip(r)
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.conn != nil {
		l.conn.Close()
	}
}
