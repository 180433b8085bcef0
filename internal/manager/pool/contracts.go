package pool

import (
	"context"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Key is what a sandbox cannot change once it has booted.
type Key struct {
	Boundary sandbox.Boundary
	Build    string
	Template string // identity, as [Identify] tells
	Root     string // that it resolved to, encoded
	Limits   sandbox.Limits
	Explicit driver.Explicit
}

// Want is a request that a waiting sandbox may serve.
type Want struct {
	Key
	Name string // of the template
	// Restore tells that the request has an image, which only a sandbox that is
	// booted can be restored from.
	Restore bool
	// Image names the image that the request starts from, "" for none. A ready
	// sandbox that was restored from the same one serves it as it is.
	Image string
}

// Plan is what a create from a template would ask a keeper for now.
type Plan struct {
	Key
	// Request has all but ID and Park.
	Request wire.Create
	// Image names the image of ready sandboxes, whose directory is in Request: ""
	// when their guest is started.
	Image string
}

// Keeper is what the pool needs of one.
type Keeper interface {
	Name() string
	Alive() bool
	Create(ctx context.Context, req *wire.Create) (*wire.Created, error)
	Wait(ctx context.Context, id sandbox.ID) (wire.Status, error)
	Stats(ctx context.Context, id sandbox.ID) (sandbox.Stats, error)
}

// Host is what the pool needs of its manager. It is safe for concurrent use.
type Host interface {
	// Plan resolves a template. Its errors are told to whoever looks at the pool.
	Plan(ctx context.Context, template string, limits sandbox.Limits) (*Plan, error)
	// Slot returns the leave to make one sandbox, unless creates need the place:
	// an urgent one has a place of its own. [Pool.Wake] tells that it is worth to
	// ask again.
	Slot(urgent bool) (release func(), ok bool)
	// Acquire returns a keeper with room for one more.
	Acquire(ctx context.Context) (Keeper, error)
	// Discard has everything of a parked sandbox given back, by its keeper or,
	// when that is dead, by whoever cleans up after it.
	Discard(ctx context.Context, k Keeper, id sandbox.ID) error
	// Crash passes a crash point of tests.
	Crash(point string)
}

// The crash points.
const (
	CrashParking = "pool.parking" // a keeper makes one, or is about to
	CrashParked  = "pool.parked"  // it is made, and nobody knows
)
