package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/sandbox"
)

// Snapshot keeps memory and files of a sandbox as they are now, under a name
// (NAME or NAME:TAG, "" for none). The sandbox goes on; Stopped tells how long it
// stood still. It returns when a sandbox can start from the snapshot.
func (c *Client) Snapshot(ctx context.Context, ref, name string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodPost, of(ref)+"/snapshots", nil, api.SnapshotRequest{Name: name}, &out)
	return out, err
}

// SnapshotFiles is Snapshot without memory: what starts from it boots anew with
// the files of the sandbox, and may have other limits.
func (c *Client) SnapshotFiles(ctx context.Context, ref, name string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodPost, of(ref)+"/snapshots", nil, api.SnapshotRequest{Name: name, Kind: sandbox.KindFiles}, &out)
	return out, err
}

// SnapshotDir keeps one directory of a sandbox, read as a user of the sandbox ("":
// its default). No sandbox starts from it: see GetSnapshotTar.
func (c *Client) SnapshotDir(ctx context.Context, ref, name, dir, user string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodPost, of(ref)+"/snapshots", nil, api.SnapshotRequest{Name: name, Kind: sandbox.KindDirectory, Dir: dir, User: user}, &out)
	return out, err
}

// GetSnapshotTar streams the archive in a snapshot of a directory. It was made by
// the guest: unpack it as hostile input.
func (c *Client) GetSnapshotTar(ctx context.Context, ref string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: snapshot(ref) + "/tar"})
	if err != nil {
		return nil, err
	}
	return &reader{ctx, resp.Body}, nil
}

// Fork makes count copies of a sandbox as it is now and returns them, and how
// long the source stood still. Name is that of the copy; several have NAME-1 and
// so on. When one fails, none is left.
func (c *Client) Fork(ctx context.Context, ref string, count int, name string) ([]sandbox.Sandbox, time.Duration, error) {
	var out api.Forked
	err := c.call(ctx, http.MethodPost, of(ref)+"/fork", nil, api.ForkRequest{Count: count, Name: name}, &out)
	return out.Sandboxes, out.Stopped, err
}

// Snapshots lists snapshots, oldest first.
func (c *Client) Snapshots(ctx context.Context) ([]sandbox.Snapshot, error) {
	var out api.SnapshotList
	err := c.call(ctx, http.MethodGet, "/snapshots", nil, nil, &out)
	return out.Snapshots, err
}

// GetSnapshot returns one snapshot by its ID or name.
func (c *Client) GetSnapshot(ctx context.Context, ref string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodGet, snapshot(ref), nil, nil, &out)
	return out, err
}

// RemoveSnapshot removes a snapshot with all its names. Sandboxes that started
// from it are not touched.
func (c *Client) RemoveSnapshot(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, snapshot(ref), nil, nil, nil)
}

// VerifySnapshot compares every byte of a snapshot with its manifest.
func (c *Client) VerifySnapshot(ctx context.Context, ref string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodPost, snapshot(ref)+"/verify", nil, nil, &out)
	return out, err
}

// TagSnapshot gives a snapshot one more name. With move the name may be taken
// from another.
func (c *Client) TagSnapshot(ctx context.Context, ref, name string, move bool) (sandbox.Snapshot, error) {
	q := url.Values{}
	if move {
		q.Set("move", "1")
	}
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodPut, snapshot(ref)+"/names/"+segment(name), q, nil, &out)
	return out, err
}

// UntagSnapshot takes a name away from a snapshot, which keeps its ID.
func (c *Client) UntagSnapshot(ctx context.Context, ref, name string) (sandbox.Snapshot, error) {
	var out sandbox.Snapshot
	err := c.call(ctx, http.MethodDelete, snapshot(ref)+"/names/"+segment(name), nil, nil, &out)
	return out, err
}

// SaveSnapshot returns a snapshot as one stream, from which LoadSnapshot makes
// the same again. A read that fails before the end means that there is no whole
// snapshot.
func (c *Client) SaveSnapshot(ctx context.Context, ref string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: snapshot(ref) + "/archive"})
	if err != nil {
		return nil, err
	}
	return &reader{ctx, resp.Body}, nil
}

// LoadSnapshot makes a snapshot of the stream of a SaveSnapshot and gives it a
// name, unless that is "". When it fails nothing is left.
func (c *Client) LoadSnapshot(ctx context.Context, archive io.Reader, name string) (sandbox.Snapshot, error) {
	q := url.Values{}
	if name != "" {
		q.Set("name", name)
	}
	var out sandbox.Snapshot
	err := c.upload(ctx, request{method: http.MethodPost, path: "/snapshots", query: q, body: archive, size: -1}, &out)
	return out, err
}

// snapshot is the path of a snapshot.
func snapshot(ref string) string { return "/snapshots/" + segment(ref) }
