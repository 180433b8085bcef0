package keeperclient

import (
	"context"
	"net/http"
	"net/url"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Checkpoint writes an image of a sandbox into req.Dir and returns when it is
// complete. Unless the sandbox is kept nothing of it is left in the keeper, and
// the connections to its guest are dropped. After an error it goes on, under
// the generation of req.Hello or the one before.
func (c *Client) Checkpoint(ctx context.Context, id sandbox.ID, req wire.Checkpoint) (*wire.Checkpointed, error) {
	var out wire.Checkpointed
	if err := c.call(ctx, http.MethodPost, "/keeper/v1/sandboxes/"+url.PathEscape(string(id))+"/checkpoint", req, &out); err != nil {
		return nil, err
	}
	if !req.Keep {
		c.drop(id)
	}
	return &out, nil
}
