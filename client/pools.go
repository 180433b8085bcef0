package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/sandbox"
)

// SetPool sets the size of the warm pool of a template and limits and returns
// where it stands; it is filled in the background, and kept over restarts of
// the daemon. A size beyond the machine's memory is
// [sandbox.ResourceExhausted].
func (c *Client) SetPool(ctx context.Context, s sandbox.PoolSpec) (sandbox.Pool, error) {
	var out sandbox.Pool
	in := api.PoolRequest{Limits: s.Limits, Ready: s.Ready, Booted: s.Booted, Ceiling: s.Ceiling}
	err := c.call(ctx, http.MethodPut, "/pools/"+url.PathEscape(s.Template), nil, in, &out)
	return out, err
}

// Pools tells where every warm pool stands.
func (c *Client) Pools(ctx context.Context) ([]sandbox.Pool, error) {
	var out api.PoolList
	err := c.call(ctx, http.MethodGet, "/pools", nil, nil, &out)
	return out.Pools, err
}

// RemovePool takes the warm pools of a template away, whatever their limits,
// and returns when nothing of them is left. [sandbox.NotFound]: there is none.
func (c *Client) RemovePool(ctx context.Context, template string) error {
	return c.call(ctx, http.MethodDelete, "/pools/"+url.PathEscape(template), nil, nil, nil)
}
