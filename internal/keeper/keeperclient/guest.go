package keeperclient

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/belljar-sh/belljar/sandbox"
)

// Guest reaches one generation of one sandbox. Requests have paths as in
// guest/wire ("/v1/..."); scheme and host do not matter. It is safe for
// concurrent use and good until the sandbox is deleted.
type Guest struct {
	base string
	link *link
}

// Guest returns the way to a guest. It does not dial.
func (c *Client) Guest(id sandbox.ID, generation uint64) *Guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.guests[id]
	if l == nil {
		l = &link{dir: c.dir, closed: c.closed}
		c.guests[id] = l
	}
	return &Guest{base: fmt.Sprintf("/guest/%s/%d", url.PathEscape(string(id)), generation), link: l}
}

// drop ends the connection to a sandbox that is no more.
func (c *Client) drop(id sandbox.ID) {
	c.mu.Lock()
	l := c.guests[id]
	delete(c.guests, id)
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// RoundTrip sends a request to the guest. Answers with a status of 400 or more
// are the guest's or the keeper's, with an ErrorBody either way.
func (g *Guest) RoundTrip(r *http.Request) (*http.Response, error) {
	out := *r // the caller's request stays as it is
	u := *r.URL
	u.Scheme, u.Host = "http", "keeper"
	u.RawPath = g.base + r.URL.EscapedPath()
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the path cannot be understood").WithField("path", r.URL.Path)
	}
	u.Path = path
	out.URL, out.Host = &u, "keeper"
	return g.link.RoundTrip(&out)
}

// Base returns the path that RoundTrip puts before a request's own.
func (g *Guest) Base() string { return g.base }

var _ http.RoundTripper = (*Guest)(nil)
