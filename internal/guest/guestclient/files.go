package guestclient

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// checkPath refuses what would only break the request on its way.
func checkPath(field, p string) error {
	if len(p) >= sandbox.MaxPath {
		return sandbox.Errorf(sandbox.Invalid, "a path has less than %d bytes", sandbox.MaxPath).WithField(field, p)
	}
	return nil
}

func fileCall(method, route, path, user string, more ...string) (call, error) {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	for i := 0; i+1 < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return call{method: method, path: route, query: q}, checkPath("path", path)
}

// File is the content of a file on its way to the host.
type File struct {
	io.ReadCloser
	Size         int64 // of what is sent; -1 when the guest does not know
	ContentRange string
}

// Get opens a file for reading as user ("" is the sandbox's default). A
// byteRange as in RFC 9110 ("bytes=0-99") may be given.
func (c *Client) Get(ctx context.Context, path, user, byteRange string) (*File, error) {
	q, err := fileCall(http.MethodGet, "/files", path, user)
	if err != nil {
		return nil, err
	}
	if byteRange != "" {
		q.header = http.Header{"Range": {byteRange}}
	}
	resp, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	return &File{ReadCloser: resp.Body, Size: resp.ContentLength, ContentRange: resp.Header.Get("Content-Range")}, nil
}

// PutOptions says how a file is written.
type PutOptions struct {
	User string
	Mode uint32            // permission bits; 0: those of the file that is replaced, else 0644
	Size int64             // of the body; 0 or less: not known
	Meta map[string]string // user extended attributes
}

// Put writes a file from body. Until all of it has arrived the old content
// stays.
func (c *Client) Put(ctx context.Context, path string, body io.Reader, o PutOptions) (wire.Entry, error) {
	var e wire.Entry
	q, err := fileCall(http.MethodPut, "/files", path, o.User)
	if err != nil {
		return e, err
	}
	if o.Mode != 0 {
		q.query.Set("mode", strconv.FormatUint(uint64(o.Mode), 8))
	}
	if len(o.Meta) > 0 {
		b, err := json.Marshal(o.Meta)
		if err != nil {
			return e, sandbox.Errorf(sandbox.Invalid, "metadata cannot be encoded: %w", err)
		}
		q.header = http.Header{wire.HeaderMeta: {string(b)}}
	}
	q.body, q.length = body, -1
	if o.Size > 0 {
		q.length = o.Size
	}
	err = c.do(ctx, q, &e)
	return e, err
}

// Stat describes a file; a link is not followed.
func (c *Client) Stat(ctx context.Context, path, user string) (wire.Entry, error) {
	return c.entry(ctx, http.MethodGet, "/stat", path, user)
}

// Mkdir makes a directory and its parents; AlreadyExists when it is there.
func (c *Client) Mkdir(ctx context.Context, path, user string) (wire.Entry, error) {
	return c.entry(ctx, http.MethodPost, "/mkdir", path, user)
}

// Move renames a file or directory, making the new parents.
func (c *Client) Move(ctx context.Context, path, to, user string) (wire.Entry, error) {
	if err := checkPath("to", to); err != nil {
		return wire.Entry{}, err
	}
	return c.entry(ctx, http.MethodPost, "/move", path, user, "to", to)
}

func (c *Client) entry(ctx context.Context, method, route, path, user string, more ...string) (wire.Entry, error) {
	var e wire.Entry
	q, err := fileCall(method, route, path, user, more...)
	if err != nil {
		return e, err
	}
	err = c.do(ctx, q, &e)
	return e, err
}

// Dir lists a directory depth first in lexical order, depth levels deep.
func (c *Client) Dir(ctx context.Context, path, user string, depth int) ([]wire.Entry, error) {
	var out []wire.Entry
	q, err := fileCall(http.MethodGet, "/dir", path, user, "depth", strconv.Itoa(max(depth, 1)))
	if err != nil {
		return nil, err
	}
	err = c.doMax(ctx, q, &out, maxListing)
	return out, err
}

// Remove removes a file, or a directory with all that is in it.
func (c *Client) Remove(ctx context.Context, path, user string) error {
	q, err := fileCall(http.MethodDelete, "/files", path, user)
	if err != nil {
		return err
	}
	return c.do(ctx, q, nil)
}

// GetTar streams a file or directory as a tar archive. It comes from a guest:
// unpack it with care.
func (c *Client) GetTar(ctx context.Context, path, user string) (io.ReadCloser, error) {
	q, err := fileCall(http.MethodGet, "/tar", path, user)
	if err != nil {
		return nil, err
	}
	resp, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// PutTar unpacks a tar archive beneath path.
func (c *Client) PutTar(ctx context.Context, path, user string, archive io.Reader) error {
	q, err := fileCall(http.MethodPut, "/tar", path, user)
	if err != nil {
		return err
	}
	q.body, q.length = archive, -1
	return c.do(ctx, q, nil)
}

// Watch is a stream of changes beneath a directory.
type Watch struct {
	*wire.WatchReader
	body io.Closer
}

// Watch begins to watch a directory, with those below it if recursive is set.
// When it returns, changes are seen from then on; ctx bounds the watch.
func (c *Client) Watch(ctx context.Context, path, user string, recursive bool) (*Watch, error) {
	q, err := fileCall(http.MethodGet, "/watch", path, user, "recursive", strconv.FormatBool(recursive))
	if err != nil {
		return nil, err
	}
	resp, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	return &Watch{wire.NewWatchReader(resp.Body), resp.Body}, nil
}

// Close ends the watch.
func (w *Watch) Close() error { return w.body.Close() }
