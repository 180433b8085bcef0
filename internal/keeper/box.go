package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// closeGrace is how long a guest that has closed its channel may take to end.
const closeGrace = 2 * time.Second

// box is one sandbox of a keeper.
type box struct {
	k      *keeper
	dir    string // of the name that it was made under, as all that the driver holds
	driver driver.Driver
	handle driver.Handle
	parked parking // what a claim must ask for

	ended   chan struct{} // closed when no guest code runs any more
	traffic channel.Traffic
	refused atomic.Int64 // connections that the guest asked for

	owners    sync.WaitGroup // goroutines of this box
	removing  sync.Once
	removed   chan struct{}
	removeErr error

	saving sync.Mutex // one checkpoint at a time

	mu     sync.Mutex
	inst   driver.Instance
	down   *channel.Host
	status wire.Status
	// restored is the instance that has been restored and has not had its hello.
	restored driver.Restorer
	making   phase // the create, or the claim, whichever came last
	going    bool  // a removal has begun, or it cannot be claimed for another reason
}

// phase is a create or a claim on its way.
type phase struct {
	cancel context.CancelFunc
	over   chan struct{} // closed when it is, either way
}

func newPhase(ctx context.Context) (context.Context, phase) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, phase{cancel: cancel, over: make(chan struct{})}
}

// name is what the box is known by: a claim changes it.
func (b *box) name() sandbox.ID { return b.snapshot().ID }

func (b *box) snapshot() wire.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// live returns what a request to the guest needs.
func (b *box) live() (*channel.Host, uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.status.Running:
		return nil, 0, notRunning(b.status.ID)
	case b.down == nil:
		return nil, 0, sandbox.Errorf(sandbox.Unavailable, "the sandbox is being saved").WithField("id", string(b.status.ID)).WithHint("try again in a moment")
	}
	return b.down, b.status.Generation, nil
}

func (b *box) stats(ctx context.Context) (sandbox.Stats, error) {
	b.mu.Lock()
	inst, id := b.inst, b.status.ID
	b.mu.Unlock()
	if inst == nil {
		return sandbox.Stats{}, sandbox.Errorf(sandbox.Conflict, "the sandbox has not started").WithField("id", string(id))
	}
	s, err := inst.Stats(ctx)
	if err != nil {
		return sandbox.Stats{}, err
	}
	s.ReadBytes, s.WrittenBytes = b.traffic.Read.Load(), b.traffic.Written.Load()
	s.EgressRefused = b.refused.Load()
	return s, nil
}

// adopt takes over a created instance: from here on its channels are served
// and its end is waited for.
func (b *box) adopt(inst driver.Instance) error {
	ch := inst.Channels()
	limits := b.limits()
	down, err := channel.DialHost(ch.Down, limits)
	if err != nil {
		ch.Up.Close()
		return err
	}
	b.mu.Lock()
	b.inst, b.down = inst, down
	b.mu.Unlock()

	b.owners.Go(func() {
		b.fault(channel.ServeHost(b.k.life, ch.Up, limits, b.denyAll()))
	})
	b.owners.Go(func() { b.watchDown(down) })
	b.owners.Go(func() { b.awaitExit(inst) })
	return nil
}

// limits are those of the sandbox's channels.
func (b *box) limits() channel.Limits {
	l := channel.DefaultLimits()
	l.Traffic = &b.traffic
	return l
}

// awaitExit records how the instance ended.
func (b *box) awaitExit(inst driver.Instance) {
	exit, err := inst.Wait(b.k.life)
	if err != nil {
		exit = sandbox.Exit{Code: -1, Reason: sandbox.AsError(err).Message}
	}
	if exit.At.IsZero() {
		exit.At = time.Now()
	}
	b.mu.Lock()
	b.status.Running, b.status.Exit = false, &exit
	down := b.down
	b.mu.Unlock()
	close(b.ended)
	if down == nil { // it ended at rest
		return
	}
	// What the guest said last is still in the stream; then it ends.
	select {
	case <-down.Done():
	case <-time.After(closeGrace):
		down.Close()
	}
}

// watchDown ends the sandbox when its down channel has ended under it.
func (b *box) watchDown(down *channel.Host) {
	select {
	case <-down.Done():
	case <-b.ended:
		return
	}
	if down.Kept() { // the checkpoint's business
		return
	}
	if err := down.Fault(); err != nil {
		b.fault(err)
		return
	}
	select {
	case <-b.ended:
	case <-time.After(closeGrace):
		b.fault(fmt.Errorf("channel-closed: the guest closed the channel and did not end"))
	}
}

// fault kills the sandbox for what its guest did; nil is no fault.
func (b *box) fault(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	if b.status.Fault == "" && b.status.Exit == nil {
		b.status.Fault = err.Error()
	}
	inst := b.inst
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.k.life, b.k.opts.ReapTimeout)
	defer cancel()
	inst.Kill(ctx) // what it cannot kill, remove reports
}

// remove kills the sandbox, gives everything back and forgets it. It may be
// called by many; all wait for the same end. A failed removal may be tried
// again: the box stays.
func (b *box) remove(ctx context.Context) error {
	b.mu.Lock()
	b.going = true // no claim begins from now on
	making := b.making
	b.mu.Unlock()
	making.cancel()
	<-making.over
	b.removing.Do(func() {
		b.removeErr = b.release(ctx)
		b.forget(b.removeErr)
		close(b.removed)
	})
	<-b.removed
	return b.removeErr
}

// forget takes the box off the keeper's list. After a failure it leaves a
// fresh box in its place, whose removal can be tried again.
func (b *box) forget(failed error) {
	k := b.k
	k.mu.Lock()
	defer k.mu.Unlock()
	id := b.name()
	if k.boxes[id] != b {
		return
	}
	delete(k.boxes, id)
	if failed != nil {
		k.boxes[id] = b.again()
	}
	k.change()
}

func (b *box) again() *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &box{
		k: b.k, dir: b.dir, driver: b.driver, handle: b.handle,
		making: b.making, ended: b.ended, going: true,
		removed: make(chan struct{}), status: b.status,
	}
}

// release gives everything back. Each step is tried even when the one before
// it failed, and Reap has the last word: it returns nil only when it has seen
// that nothing is left.
func (b *box) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.k.opts.ReapTimeout)
	defer cancel()
	b.mu.Lock()
	inst, down := b.inst, b.down
	b.mu.Unlock()
	var derr error
	if inst != nil {
		derr = inst.Destroy(ctx)
	}
	if down != nil {
		down.Close()
		inst.Channels().Up.Close()
	}
	b.k.crash(BeforeReap)
	if b.handle.Boundary != "" {
		if err := b.driver.Reap(ctx, b.handle); err != nil {
			return errors.Join(sandbox.AsError(err), derr)
		}
	}
	b.k.crash(AfterReap)
	b.owners.Wait()
	return removeTree(b.dir)
}

func (b *box) makeDirs() error {
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot make a directory: %w", err).WithField("dir", b.dir)
	}
	if err := os.Mkdir(filepath.Join(b.dir, driverDir), 0o700); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot make a directory: %w", err).WithField("dir", b.dir)
	}
	return nil
}
