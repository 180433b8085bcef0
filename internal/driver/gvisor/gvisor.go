package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options configure the driver. The zero value works in belljar-engine.
type Options struct {
	// Engine is the path of belljar-engine, which is run for gVisor's roles;
	// "" is the running program. Every user of the host must be allowed to run
	// it, for the roles have ids that own nothing.
	Engine string
	// GVisor is the version of the gVisor module in Engine; "" is that of the
	// running program.
	GVisor string
	// DebugDir, when set, is where gVisor writes debug logs, which slow it down
	// and hold what guests do.
	DebugDir string
}

// Driver runs sandboxes behind gVisor. It is safe for concurrent use.
type Driver struct {
	opts    Options
	engine  *os.File // O_PATH
	ids     identity
	cgroups *cgroupHost
	spawn   *spawner

	gone sync.Map // sandbox.ID of what was destroyed here and not reaped yet

	mountsOnce sync.Once
	mounts     *mounter
	mountsErr  error
}

var _ driver.Driver = (*Driver)(nil)

// spawnThreads is how many processes can be started at the same time.
const spawnThreads = 2

// New returns the driver, having looked at this process's ids and cgroups. It
// starts threads that live as long as the process.
func New(opts Options) (*Driver, error) {
	if opts.Engine == "" {
		opts.Engine = "/proc/self/exe"
	}
	if opts.GVisor == "" {
		opts.GVisor = ownGVisor()
	}
	fd, err := unix.Open(opts.Engine, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the engine cannot be opened: %w", err).WithField("engine", opts.Engine)
	}
	d := &Driver{opts: opts, engine: os.NewFile(uintptr(fd), opts.Engine)}
	if d.ids, err = readIdentity(); err != nil {
		return nil, err
	}
	if d.cgroups, err = findCgroups(); err != nil {
		return nil, fmt.Errorf("look up cgroups: %w", err)
	}
	d.spawn = newSpawner(spawnThreads, uniquePlaces(d.cgroups.places))
	return d, nil
}

// Boundary returns [sandbox.GVisor].
func (d *Driver) Boundary() sandbox.Boundary { return sandbox.GVisor }

// handleData is what a handle of this driver names.
type handleData struct {
	Cgroups []place `json:"cgroups,omitempty"`
}

// Handle names the cgroups that Create would make. All else that Create
// acquires outside Dir (processes, detached mounts, an unnamed file, the lock
// on a range of ids) the kernel gives back with the keeper, or Reap finds by
// what Create records in Dir or by the sandbox's ID.
func (d *Driver) Handle(req *driver.CreateRequest) (driver.Handle, error) {
	h := driver.Handle{Boundary: sandbox.GVisor, ID: req.ID, Dir: req.Dir}
	data, err := json.Marshal(handleData{Cgroups: uniquePlaces(d.cgroups.dirs(req.ID))})
	if err != nil {
		return h, err
	}
	h.Data = data
	return h, nil
}

// Create boots a sandbox up to the point where guest code would run.
func (d *Driver) Create(ctx context.Context, req *driver.CreateRequest) (driver.Instance, error) {
	if err := checkRequest(req); err != nil {
		return nil, err
	}
	// Not made by New: the probe of an ordinary user has no right to it.
	d.mountsOnce.Do(func() { d.mounts, d.mountsErr = newMounter() })
	if d.mountsErr != nil {
		return nil, treeError("mount", "/", d.mountsErr)
	}
	i, err := d.create(ctx, req)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func checkRequest(req *driver.CreateRequest) error {
	if _, err := sandbox.ParseID(string(req.ID)); err != nil {
		return err
	}
	l := req.Limits
	if l.CPUs <= 0 || l.MemoryBytes <= 0 || l.Processes <= 0 || l.DiskBytes <= 0 || l.OpenFiles <= 0 {
		return sandbox.Errorf(sandbox.Internal, "limits were not merged with defaults").WithField("limits", fmt.Sprintf("%+v", l))
	}
	return l.Validate()
}
