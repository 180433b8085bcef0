package client

import (
	"context"
	"net/http"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/sandbox"
)

// DiskUse tells what takes disk, but for templates.
func (c *Client) DiskUse(ctx context.Context) (sandbox.DiskUse, error) {
	var out sandbox.DiskUse
	err := c.call(ctx, http.MethodGet, "/system/df", nil, nil, &out)
	return out, err
}

// Prune removes what nobody needs, with all also snapshots without a name, and
// tells what it was. With dry nothing is removed: it tells what would be.
func (c *Client) Prune(ctx context.Context, all, dry bool) (sandbox.Pruned, error) {
	var out sandbox.Pruned
	err := c.call(ctx, http.MethodPost, "/system/prune", nil, api.PruneRequest{All: all, DryRun: dry}, &out)
	return out, err
}

// Quota tells what bounds that which is saved on disk.
func (c *Client) Quota(ctx context.Context) (sandbox.DiskQuota, error) {
	var out sandbox.DiskQuota
	err := c.call(ctx, http.MethodGet, "/system/quota", nil, nil, &out)
	return out, err
}

// SetQuota sets what paused sandboxes and snapshots may take together, and what
// stays free on the disk, in bytes; nil leaves a bound as it is. It is kept over
// restarts of the daemon.
func (c *Client) SetQuota(ctx context.Context, kept, free *int64) (sandbox.DiskQuota, error) {
	var out sandbox.DiskQuota
	err := c.call(ctx, http.MethodPut, "/system/quota", nil, api.QuotaRequest{KeptBytes: kept, FreeBytes: free}, &out)
	return out, err
}
