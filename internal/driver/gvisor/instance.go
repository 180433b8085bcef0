package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// removeTimeout bounds the wait for processes of a sandbox to be gone.
const removeTimeout = 10 * time.Second

// Instance is one sandbox. Its methods are safe for concurrent use.
type Instance struct {
	id     sandbox.ID
	dir    string
	trace  func(string, time.Time, time.Duration)
	slot   *slotLock
	cg     *group
	limits []sandbox.LimitStatus
	cpus   int
	memory int64
	conns  driver.Channels
	ctl    *control
	log    *tail

	stored    bool  // its files are on a disk and can be saved
	fromFiles bool  // it begins with an image of files
	maxImage  int64 // bytes that an image of its files may take

	gvisor  string   // version of the module
	tree    *os.File // the root's lower layer
	store   *os.File // what it has written; nil in memory
	since   int64    // when the tree was made, in nanoseconds of the host's clock
	mark    rootMark // of the directory that it is made of
	sentry  *exec.Cmd
	gofer   *exec.Cmd // nil without shares
	started atomic.Bool
	killed  atomic.Bool
	oomed   atomic.Bool
	oom     *oomWatch // nil where the kernel ends the sandbox as one

	done chan struct{} // closed when its processes are gone
	exit sandbox.Exit  // valid then

	destroy sync.Mutex
	gone    bool
	onGone  func()
}

var _ driver.Instance = (*Instance)(nil)

func newInstance(c *creation) *Instance {
	return &Instance{
		id: c.req.ID, dir: c.req.Dir, trace: c.req.Trace, done: make(chan struct{}),
		fromFiles: c.req.Files != "", maxImage: imageBound(c.req.Limits),
	}
}

// adopt takes over what a creation has acquired.
func (i *Instance) adopt(c *creation) {
	i.cg, i.limits, i.conns, i.ctl, i.log = c.cg, c.limits, c.conns, c.ctl, c.log
	i.cpus, i.memory = cpusSeen(c.req.Limits.CPUs), c.req.Limits.MemoryBytes
	i.sentry, i.stored = c.sentry.cmd, c.stored
	i.tree, i.mark, i.since, i.store = c.tree, c.mark, c.since, c.store
	d := c.d
	i.onGone = func() { d.gone.Store(i.id, true) }
	if c.gofer != nil {
		i.gofer = c.gofer.cmd
	}
	if i.oom = i.cg.watchOOM(); i.oom != nil {
		go i.endOnOOM()
	}
	go i.watch()
}

// endOnOOM ends what the kernel has taken a part of. It ends with the watch.
func (i *Instance) endOnOOM() {
	if i.oom.wait() {
		i.oomed.Store(true)
		_ = i.sentry.Process.Kill()
	}
}

// watch waits for the processes. It ends with them.
func (i *Instance) watch() {
	state, err := i.sentry.Process.Wait()
	if i.gofer != nil {
		_ = i.gofer.Process.Kill()
		_, _ = i.gofer.Process.Wait()
	}
	i.oom.close()
	i.exit = i.explain(state, err)
	close(i.done)
}

func (i *Instance) explain(state *os.ProcessState, err error) sandbox.Exit {
	e := sandbox.Exit{Code: -1, At: time.Now()}
	if err != nil {
		e.Reason = err.Error()
		return e
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = int(ws.Signal())
	} else {
		e.Code = state.ExitCode()
	}
	switch {
	case i.killed.Load():
		e.Reason = "killed"
	case i.oomed.Load() || i.cg.oomKills() > 0:
		e.OOM, e.Code, e.Signal = true, -1, int(syscall.SIGKILL)
		e.Reason = "the memory limit was reached"
	case e.Signal != 0:
		e.Reason = "the sandbox's kernel was ended from outside"
	case e.Code != 0:
		e.Reason = "the sandbox ended by itself: " + clip(i.log.text(), 1<<10)
	}
	return e
}

// Start runs the guest's first process.
func (i *Instance) Start(ctx context.Context) error {
	if !i.started.CompareAndSwap(false, true) {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox was started before")
	}
	start := time.Now()
	err := i.ctl.call(ctx, methodStartRoot, string(i.id))
	if err == nil {
		err = i.awaitFiles(ctx)
	}
	if i.trace != nil {
		i.trace("gvisor.start", start, time.Since(start))
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if i.fromFiles && i.cg.oomKills() > 0 {
		return sandbox.Errorf(sandbox.ResourceExhausted, "the memory limit is too small for as many files").
			WithField("memory", strconv.FormatInt(i.memory, 10)).WithHint("ask for more memory").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the guest could not be started: %v: %s", err, i.log.text()).WithCause(err)
}

// Channels returns the two channels.
func (i *Instance) Channels() driver.Channels { return i.conns }

// Limits tells which limits are in force.
func (i *Instance) Limits() []sandbox.LimitStatus {
	return append([]sandbox.LimitStatus(nil), i.limits...)
}

// CPUsSeen is the number of processors inside.
func (i *Instance) CPUsSeen() int { return i.cpus }

// Kill ends the sandbox and returns when no process of it is left.
func (i *Instance) Kill(ctx context.Context) error {
	select {
	case <-i.done:
		return nil
	default:
	}
	i.killed.Store(true)
	if err := i.sentry.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill sentry: %w", err)
	}
	select {
	case <-i.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wait blocks until the sandbox has ended.
func (i *Instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-i.done:
		return i.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, context.Cause(ctx)
	}
}

// Destroy kills the sandbox and gives everything back. It may be called again
// after it has failed.
func (i *Instance) Destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if err := i.Kill(ctx); err != nil {
		return err
	}
	i.destroy.Lock()
	defer i.destroy.Unlock()
	if i.gone {
		return nil
	}
	if err := i.cg.remove(ctx); err != nil {
		return err
	}
	i.ctl.close()
	i.tree.Close()
	if i.store != nil {
		i.store.Close()
	}
	i.slot.release()
	i.gone = true
	i.onGone()
	return nil
}
