package client

import (
	"context"
	"io"
	"net/http"
)

// Changes streams the list of what a sandbox has changed in its root since its
// template: a tar stream of names without contents, as the API's document says of
// getChanges. It was written by the guest's kernel: read it as hostile input. A
// sandbox that is paused with its memory is resumed.
func (c *Client) Changes(ctx context.Context, ref string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, request{method: http.MethodGet, path: of(ref) + "/changes"})
	if err != nil {
		return nil, err
	}
	return &reader{ctx, resp.Body}, nil
}
