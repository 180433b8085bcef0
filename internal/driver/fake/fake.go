// Package fake is a driver that ships with the product for tests of everything
// above the driver contract. It runs a real guest, in this process or as a
// child process, over real socket pairs, and can be told to fail, block or
// crash at any step. It isolates nothing.
//
// It passes drivertest like any other driver. To have something to leak, it
// keeps one file per instance in [Options].Outside, as others keep cgroups.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// ExitOOM, returned by a guest in process, ends the sandbox as the memory
// limit would.
const ExitOOM = -137

// Options configures [New].
type Options struct {
	// Boundary is what the driver claims to be; default [sandbox.GVisor].
	Boundary sandbox.Boundary
	// Serve is the guest, run in this process. It must return soon after its
	// context has ended and returns the exit code. When nil,
	// CreateRequest.Guest is run as a child process.
	Serve func(ctx context.Context, down, up net.Conn) int
	// Outside is an existing directory for what an instance holds outside of
	// its Dir.
	Outside string
	// Enforces lists the limits that the driver claims to hold.
	Enforces []sandbox.LimitName
}

// Driver implements [driver.Driver]. It is safe for concurrent use.
type Driver struct {
	opts   Options
	script script

	mu   sync.Mutex
	here map[sandbox.ID]here // guests in this process
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver that does everything right until told otherwise by On.
func New(o Options) *Driver {
	if o.Boundary == "" {
		o.Boundary = sandbox.GVisor
	}
	return &Driver{opts: o, here: map[sandbox.ID]here{}}
}

// Boundary returns what the driver claims to be.
func (d *Driver) Boundary() sandbox.Boundary { return d.opts.Boundary }

// Probe says yes, or no with the error of an action on [Probe].
func (d *Driver) Probe(ctx context.Context) driver.Report {
	r := driver.Report{
		Boundary: d.opts.Boundary, Available: driver.Yes,
		Capabilities: driver.Capabilities{
			MemoryCheckpoint: d.opts.Serve == nil, FileSnapshot: d.opts.Serve == nil, Entropy: driver.HostLive, Clock: driver.HostLive,
		},
		Checks: []driver.Check{{Name: "fake", Verdict: driver.Yes, Reason: "it isolates nothing"}},
	}
	if err := d.script.run(ctx.Done(), Probe); err != nil {
		r.Available, r.Reason = driver.No, err.Error()
	}
	return r
}

// handleData is the driver's own part of a handle.
type handleData struct {
	Mark    string `json:"mark"`    // in the environment of every process of the instance
	Outside string `json:"outside"` // the file outside of Dir, "" for none
}

// Handle names the mark and the outside file of an instance.
func (d *Driver) Handle(req *driver.CreateRequest) (driver.Handle, error) {
	if err := d.script.run(nil, Handle); err != nil {
		return driver.Handle{}, err
	}
	h := handleData{Mark: markOf(req.ID)}
	if d.opts.Outside != "" {
		h.Outside = filepath.Join(d.opts.Outside, string(req.ID))
	}
	data, err := json.Marshal(h)
	if err != nil {
		return driver.Handle{}, sandbox.Errorf(sandbox.Internal, "cannot encode a handle: %w", err)
	}
	return driver.Handle{Boundary: d.opts.Boundary, ID: req.ID, Dir: req.Dir, Data: data}, nil
}

// Create makes the channels and the outside file.
func (d *Driver) Create(ctx context.Context, req *driver.CreateRequest) (driver.Instance, error) {
	if err := d.script.run(ctx.Done(), Create); err != nil {
		return nil, err
	}
	limits, err := d.limits(req)
	if err != nil {
		return nil, err
	}
	h, err := d.Handle(req)
	if err != nil {
		return nil, err
	}
	in := &instance{d: d, handle: h, guest: req.Guest, limits: limits, done: make(chan struct{})}
	if err := in.acquire(); err != nil {
		return nil, errors.Join(err, d.release(context.WithoutCancel(ctx), h))
	}
	if err := in.beginWith(req.Files); err != nil {
		in.closeAll()
		return nil, errors.Join(err, d.release(context.WithoutCancel(ctx), h))
	}
	if err := d.script.run(ctx.Done(), CreateHalf); err != nil {
		in.closeAll()
		return nil, errors.Join(err, d.release(context.WithoutCancel(ctx), h))
	}
	return in, nil
}

func (d *Driver) limits(req *driver.CreateRequest) ([]sandbox.LimitStatus, error) {
	l, e := req.Limits, req.Explicit
	all := []sandbox.LimitStatus{
		{Name: sandbox.LimitCPU, Value: strconv.FormatFloat(l.CPUs, 'g', -1, 64), Explicit: e.CPUs},
		{Name: sandbox.LimitMemory, Value: strconv.FormatInt(l.MemoryBytes, 10), Explicit: e.Memory},
		{Name: sandbox.LimitProcesses, Value: strconv.FormatInt(l.Processes, 10), Explicit: e.Processes},
		{Name: sandbox.LimitDisk, Value: strconv.FormatInt(l.DiskBytes, 10), Explicit: e.Disk},
		{Name: sandbox.LimitOpenFiles, Value: strconv.FormatInt(l.OpenFiles, 10), Explicit: e.OpenFiles},
	}
	for i := range all {
		s := &all[i]
		if slices.Contains(d.opts.Enforces, s.Name) {
			s.Enforced, s.By = true, "the fake driver's word"
			continue
		}
		s.Reason = "the fake driver holds no limit"
		if s.Explicit {
			return nil, sandbox.Errorf(sandbox.Unsupported, "the fake driver cannot hold this limit").
				WithField(string(s.Name), s.Value).WithHint("leave the limit out")
		}
	}
	return all, nil
}

// Reap kills every process that carries the handle's mark and removes the
// outside file.
func (d *Driver) Reap(ctx context.Context, h driver.Handle) error {
	if err := d.script.run(ctx.Done(), Reap); err != nil {
		return err
	}
	return d.release(ctx, h)
}

func (d *Driver) release(ctx context.Context, h driver.Handle) error {
	var data handleData
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "not a handle of the fake driver: %w", err)
	}
	d.mu.Lock()
	if g, ok := d.here[h.ID]; ok {
		g.cancel()
	}
	d.mu.Unlock()
	if d.opts.Serve == nil {
		if err := killMarked(ctx, data.Mark); err != nil {
			return err
		}
	}
	if data.Outside != "" {
		if err := os.Remove(data.Outside); err != nil && !errors.Is(err, os.ErrNotExist) {
			return sandbox.Errorf(sandbox.Internal, "cannot remove the outside file: %w", err)
		}
	}
	return d.script.run(ctx.Done(), ReapHalf)
}

// instance implements [driver.Instance].
type instance struct {
	d      *Driver
	handle driver.Handle
	guest  string
	limits []sandbox.LimitStatus
	host   driver.Channels
	inside driver.Channels // closed once the guest has them or is gone

	mu      sync.Mutex
	running runner
	started bool
	killed  bool
	done    chan struct{} // closed when exit is set
	exit    sandbox.Exit
}

// runner is a guest under way.
type runner interface {
	kill(ctx context.Context) error
	stats() (sandbox.Stats, error)
}

func (in *instance) acquire() error {
	var data handleData
	if err := json.Unmarshal(in.handle.Data, &data); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot decode the handle: %w", err)
	}
	if data.Outside != "" {
		if err := os.WriteFile(data.Outside, []byte(data.Mark), 0o600); err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the outside file: %w", err)
		}
	}
	var err error
	if in.host.Down, in.inside.Down, err = socketPair(); err != nil {
		return err
	}
	if in.host.Up, in.inside.Up, err = socketPair(); err != nil {
		in.closeAll()
		return err
	}
	return nil
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, sandbox.Errorf(sandbox.Unavailable, "cannot make a socket pair: %w", err)
	}
	if a, err = fileConn(fds[0]); err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	if b, err = fileConn(fds[1]); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "channel")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot use a socket: %w", err)
	}
	return c, nil
}

func (in *instance) closeAll() {
	for _, c := range []net.Conn{in.host.Down, in.host.Up, in.inside.Down, in.inside.Up} {
		if c != nil {
			c.Close()
		}
	}
}

// Start runs the guest.
func (in *instance) Start(ctx context.Context) error {
	if err := in.d.script.run(ctx.Done(), Start); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.started || in.killed {
		return sandbox.Errorf(sandbox.Conflict, "an instance starts once")
	}
	var err error
	if in.d.opts.Serve != nil {
		in.running = in.serveHere(context.WithoutCancel(ctx))
	} else {
		in.running, err = in.spawn(context.WithoutCancel(ctx))
	}
	in.started = err == nil
	return err
}

// end records how the guest ended; the first call counts.
func (in *instance) end(e sandbox.Exit) {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.done:
	default:
		e.At = time.Now()
		if in.killed && e.Reason == "" {
			e.Reason = "killed"
		}
		in.exit = e
		close(in.done)
	}
}

// Channels returns the host's ends.
func (in *instance) Channels() driver.Channels { return in.host }

// Limits tells what the driver claims to hold.
func (in *instance) Limits() []sandbox.LimitStatus { return slices.Clone(in.limits) }

// CPUsSeen is the host's number of processors.
func (in *instance) CPUsSeen() int { return cpus() }

// Kill ends the guest and everything that carries its mark.
func (in *instance) Kill(ctx context.Context) error {
	if err := in.d.script.run(ctx.Done(), Kill); err != nil {
		return err
	}
	return in.kill(ctx)
}

func (in *instance) kill(ctx context.Context) error {
	in.mu.Lock()
	in.killed = true
	running := in.running
	in.mu.Unlock()
	if running == nil {
		in.inside.Down.Close()
		in.inside.Up.Close()
		in.end(sandbox.Exit{Code: -1, Signal: int(unix.SIGKILL)})
		return nil
	}
	if err := running.kill(ctx); err != nil {
		return err
	}
	select {
	case <-in.done:
		return nil
	case <-ctx.Done():
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the guest has not ended").WithCause(ctx.Err())
	}
}

// Wait returns how the guest ended.
func (in *instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	if err := in.d.script.run(ctx.Done(), Wait); err != nil {
		return sandbox.Exit{}, err
	}
	select {
	case <-in.done:
		return in.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, sandbox.Errorf(sandbox.Canceled, "the wait was given up").WithCause(ctx.Err())
	}
}

// Stats counts what a child process uses; a guest in process has no figures.
func (in *instance) Stats(ctx context.Context) (sandbox.Stats, error) {
	if err := in.d.script.run(ctx.Done(), Stats); err != nil {
		return sandbox.Stats{}, err
	}
	in.mu.Lock()
	running := in.running
	in.mu.Unlock()
	if running == nil {
		return sandbox.Stats{}, nil
	}
	return running.stats()
}

// Destroy kills and gives everything back.
func (in *instance) Destroy(ctx context.Context) error {
	if err := in.d.script.run(ctx.Done(), Destroy); err != nil {
		return err
	}
	if err := in.kill(ctx); err != nil {
		return err
	}
	return in.d.release(ctx, in.handle)
}
