package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// File is the content of a file inside a sandbox.
type File struct {
	io.ReadCloser
	Size int64 // bytes that follow; -1 when unknown
}

// GetFile reads a file as user ("" is the sandbox's default) from byte offset
// on, to its end. Paths are absolute, and so everywhere below.
func (c *Client) GetFile(ctx context.Context, ref, path, user string, offset int64) (*File, error) {
	r := request{method: http.MethodGet, path: of(ref) + "/files", query: at(path, user)}
	if offset > 0 {
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-", offset)}}
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	if offset > 0 && resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "the API sent the whole file where a part was asked for")
	}
	return &File{&reader{ctx, resp.Body}, resp.ContentLength}, nil
}

// PutFile writes a file as user. Missing parents are made. The old content
// stays until all of data has arrived; size is that of data, -1 when unknown.
// Mode 0 leaves the permissions to the sandbox's default.
func (c *Client) PutFile(ctx context.Context, ref, path, user string, mode uint32, data io.Reader, size int64) (Entry, error) {
	q := at(path, user)
	if mode != 0 {
		q.Set("mode", strconv.FormatUint(uint64(mode), 8))
	}
	var out Entry
	err := c.upload(ctx, request{method: http.MethodPut, path: of(ref) + "/files", query: q, body: data, size: size}, &out)
	return out, err
}

// Stat describes a file; links are not followed.
func (c *Client) Stat(ctx context.Context, ref, path, user string) (Entry, error) {
	var out Entry
	err := c.call(ctx, http.MethodGet, of(ref)+"/stat", at(path, user), nil, &out)
	return out, err
}

// ReadDir lists a directory to the given depth (1: itself only).
func (c *Client) ReadDir(ctx context.Context, ref, path, user string, depth int) ([]Entry, error) {
	q := at(path, user)
	q.Set("depth", strconv.Itoa(depth))
	var out api.EntryList
	err := c.call(ctx, http.MethodGet, of(ref)+"/dir", q, nil, &out)
	return out.Entries, err
}

// Mkdir makes a directory and its missing parents.
func (c *Client) Mkdir(ctx context.Context, ref, path, user string) (Entry, error) {
	var out Entry
	err := c.call(ctx, http.MethodPost, of(ref)+"/mkdir", at(path, user), nil, &out)
	return out, err
}

// Move renames a file or directory.
func (c *Client) Move(ctx context.Context, ref, path, to, user string) (Entry, error) {
	q := at(path, user)
	q.Set("to", to)
	var out Entry
	err := c.call(ctx, http.MethodPost, of(ref)+"/move", q, nil, &out)
	return out, err
}

// Remove removes a file or a directory with all that is in it. Links are
// removed, not followed.
func (c *Client) Remove(ctx context.Context, ref, path, user string) error {
	return c.call(ctx, http.MethodDelete, of(ref)+"/files", at(path, user), nil, nil)
}

// GetTar streams a file or directory as a tar archive. What comes was made by
// the guest: unpack it as hostile input.
func (c *Client) GetTar(ctx context.Context, ref, path, user string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: of(ref) + "/tar", query: at(path, user)})
	if err != nil {
		return nil, err
	}
	return &reader{ctx, resp.Body}, nil
}

// PutTar unpacks a tar archive beneath path. It returns when all has been
// written.
func (c *Client) PutTar(ctx context.Context, ref, path, user string, archive io.Reader) error {
	r := request{method: http.MethodPut, path: of(ref) + "/tar", query: at(path, user), body: archive, size: -1}
	return c.upload(ctx, r, nil)
}

func (c *Client) upload(ctx context.Context, r request, out any) error {
	r.header = http.Header{"Content-Type": {"application/octet-stream"}}
	if r.size == 0 {
		r.body = http.NoBody
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply))
		return err
	}
	return decodeReply(ctx, resp.Body, out)
}

// Watch reports changes beneath a directory until it is closed.
func (c *Client) Watch(ctx context.Context, ref, path, user string, recursive bool) (*Watch, error) {
	q := at(path, user)
	if recursive {
		q.Set("recursive", "1")
	}
	resp, err := c.send(ctx, request{method: http.MethodGet, path: of(ref) + "/watch", query: q})
	if err != nil {
		return nil, err
	}
	return &Watch{ctx: ctx, body: resp.Body, r: bufio.NewReader(&reader{ctx, resp.Body})}, nil
}

// Watch is a stream of changes. It is for one goroutine, but Close may be
// called by another.
type Watch struct {
	ctx  context.Context
	body io.ReadCloser
	r    *bufio.Reader
}

// Next returns the next change, or io.EOF when the sandbox has ended the
// watch.
func (w *Watch) Next() (WatchEvent, error) {
	var ev WatchEvent
	for {
		f, err := wire.ReadFrame(w.r)
		if err == io.EOF {
			return ev, io.EOF
		}
		if err != nil {
			return ev, streamError(w.ctx, err)
		}
		if f.Len > wire.MaxJSONFrame {
			return ev, sandbox.Errorf(sandbox.Internal, "a watch event of %d bytes", f.Len)
		}
		b := make([]byte, f.Len)
		if _, err := io.ReadFull(w.r, b); err != nil {
			return ev, streamError(w.ctx, err)
		}
		switch f.Type {
		case wire.FrameKeepalive:
		case wire.FrameJSON:
			if err := json.Unmarshal(b, &ev); err != nil {
				return ev, sandbox.Errorf(sandbox.Internal, "a watch event is not JSON: %w", err)
			}
			if ev.Dropped < 0 {
				return ev, sandbox.Errorf(sandbox.Internal, "a watch in which %d events were dropped", ev.Dropped)
			}
			return ev, nil
		default:
			return ev, sandbox.Errorf(sandbox.Internal, "an unexpected frame in a watch")
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() error { return w.body.Close() }

// at is the query that every file request has.
func at(path, user string) url.Values {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	return q
}

// reader gives the errors of a body the client's kinds.
type reader struct {
	ctx context.Context
	rc  io.ReadCloser
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.rc.Read(p)
	if err != nil && err != io.EOF {
		err = transportError(r.ctx, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.rc.Close() }
