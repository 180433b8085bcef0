package manager

import (
	"context"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Keepers finds, starts and cleans up after keeper processes. Implementations
// are safe for concurrent use.
type Keepers interface {
	// Acquire returns a living keeper for one more sandbox, starting one when
	// there is none with room. load tells how many sandboxes the manager has on
	// the keeper of that name. A host without room is
	// [sandbox.ResourceExhausted].
	Acquire(ctx context.Context, load func(name string) int) (Keeper, error)

	// Adopt returns the living keepers that an earlier manager left. It is
	// called once, before Acquire.
	Adopt(ctx context.Context) ([]Keeper, error)

	// Reap removes whatever the keeper of that name has left on the host. It
	// is an error while that keeper lives; a name of which nothing is left is
	// none. An empty name means every dead keeper.
	Reap(ctx context.Context, name string) error

	// Probe asks the host what each boundary can do here.
	Probe(ctx context.Context) ([]driver.Report, error)

	// Close ends the keepers that have no sandbox and lets go of the others.
	Close(ctx context.Context) error
}

// Keeper is one keeper process. Its methods may be called at any time and
// return [sandbox.Unavailable] when the keeper does not answer.
type Keeper interface {
	Name() string     // of its directory
	Instance() string // changes with the process

	// Alive reports whether the process still holds its lock.
	Alive() bool

	// SendFiles passes open files and returns the ticket by which one create
	// takes them.
	SendFiles(ctx context.Context, files []*os.File) (ticket string, err error)

	Create(ctx context.Context, req *wire.Create) (*wire.Created, error)
	// Claim gives a sandbox that Create has parked its name and has its guest
	// answer. After an error nothing is left of it under that name, unless there
	// was no answer.
	Claim(ctx context.Context, parked sandbox.ID, req *wire.Claim) (*wire.Created, error)

	List(ctx context.Context) ([]wire.Status, error)
	Wait(ctx context.Context, id sandbox.ID) (wire.Status, error)
	Stats(ctx context.Context, id sandbox.ID) (sandbox.Stats, error)

	// Delete kills and gives everything back; a sandbox that the keeper does
	// not know is no error.
	Delete(ctx context.Context, id sandbox.ID) (wire.Status, error)

	// Checkpoint writes an image of a sandbox into a directory. It returns when
	// the image is complete and, unless the sandbox is kept, when nothing of it
	// is left in the keeper. After an error the sandbox goes on, under the
	// generation of req.Hello or the one before, as List tells.
	Checkpoint(ctx context.Context, id sandbox.ID, req wire.Checkpoint) (*wire.Checkpointed, error)

	// Changes streams what a running sandbox has changed in its root, as its
	// kernel tells it.
	Changes(ctx context.Context, id sandbox.ID) (io.ReadCloser, error)

	// Guest carries requests to the guest's server; their URLs have the paths
	// of guest/wire.
	Guest(id sandbox.ID, generation uint64) http.RoundTripper
}

// Templates finds what sandboxes start from.
type Templates interface {
	// Resolve returns the root of a template and the identity of user in it.
	// An unknown template or user is [sandbox.NotFound] or [sandbox.Invalid].
	Resolve(ctx context.Context, name, user string) (Resolved, error)
	List(ctx context.Context) ([]sandbox.Template, error)
}

// Resolved is a template that a sandbox is about to start from.
type Resolved struct {
	Root     driver.Root
	User     driver.User
	Template sandbox.Template // what they are of
	// Release, when set, is called once the sandbox has been created or has
	// failed to be: the root is then held by the sandbox alone.
	Release func()
}

// Journal is durable memory. A call that has returned survives the death of
// the process.
type Journal interface {
	Load(ctx context.Context) ([]Record, error)
	// Put stores a record, replacing that of the same ID, together with the
	// events that go with the change.
	Put(ctx context.Context, r *Record, events ...sandbox.Event) error
	// Forget removes a record with its events.
	Forget(ctx context.Context, id sandbox.ID) error
	// Events returns the stored events of a sandbox in order.
	Events(ctx context.Context, id sandbox.ID) ([]sandbox.Event, error)
}

// Record is what the manager remembers of one sandbox.
type Record struct {
	Sandbox  sandbox.Sandbox `json:"sandbox"`
	Limits   sandbox.Limits  `json:"limits"`             // in force, defaults filled
	Keeper   string          `json:"keeper,omitempty"`   // name of its directory
	Instance string          `json:"instance,omitempty"` // of the keeper's process
	// Deadline is when the timeout strikes, in nanoseconds of the host's
	// CLOCK_MONOTONIC, which a sandbox never outlives. 0: no timeout.
	Deadline int64 `json:"deadline,omitempty"`
	// Timeout is what was asked for last, in nanoseconds; 0: none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Remaining is what the timeout has left while the sandbox is paused.
	Remaining time.Duration `json:"remaining,omitempty"`
	// Explicit tells which limits were asked for and Env what every process
	// begins with: a resume asks a keeper for the same again. Env is forgotten
	// with the sandbox's end.
	Explicit driver.Explicit   `json:"explicit,omitzero"`
	Env      map[string]string `json:"env,omitempty"`
	// Linger is how long an AutoRemove sandbox outlives its command, for the
	// command's reader, in nanoseconds.
	Linger time.Duration `json:"linger,omitempty"`
	// Preparing tells that a template's image is to be taken of it: without the
	// manager that began this it is of no use.
	Preparing bool `json:"preparing,omitempty"`
	// Captured lists processes whose output is kept for logs.
	Captured []string `json:"captured,omitempty"`
	Seq      int64    `json:"seq"` // of the newest event
}
