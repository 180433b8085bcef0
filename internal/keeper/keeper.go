package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/oklog/run"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options configures [Run].
type Options struct {
	Dir     string          // the keeper's directory: 0700, the caller's own
	Drivers []driver.Driver // one per boundary; safe for concurrent use
	Kind    string          // "daemon" or "run", for owner.json

	// Lifeline, when set, ends the keeper and all its sandboxes at its end of
	// file.
	Lifeline *os.File
	// Lock, Socket and FDSocket may be handed over by the process that made
	// the directory; what is missing is made.
	Lock     *os.File
	Socket   net.Listener
	FDSocket net.Listener
	// Ready, when set, is called once requests are served.
	Ready func()

	MaxSandboxes  int           // at the same time; default 256
	MaxCreates    int           // being built at the same time; default twice the processors, at least 4
	MaxWaiting    int           // creates that wait for their turn; default 256
	HelloTimeout  time.Duration // from start to the guest's answer; default 60 s
	ReapTimeout   time.Duration // for one sandbox; default 60 s
	IdleExit      time.Duration // without connection and sandbox, but parked ones, for so long; 0: never
	Crash         CrashPoint    // for tests: where to die
	TicketTimeout time.Duration // life of descriptors that nobody takes; default 1 min
}

func (o Options) withDefaults() Options {
	pick := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	pickTime := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	pick(&o.MaxSandboxes, 256)
	pick(&o.MaxCreates, max(4, 2*runtime.NumCPU()))
	pick(&o.MaxWaiting, 256)
	pickTime(&o.HelloTimeout, time.Minute)
	pickTime(&o.ReapTimeout, time.Minute)
	pickTime(&o.TicketTimeout, time.Minute)
	return o
}

type keeper struct {
	opts     Options
	instance string
	life     context.Context // of the sandboxes: outlasts the serving of requests
	creates  chan struct{}   // one slot per create under way
	stopping chan struct{}   // closed when the keeper is to end
	stopOnce sync.Once
	tickets  *tickets

	mu       sync.Mutex
	boxes    map[sandbox.ID]*box
	waiting  int
	draining bool
	conns    int
	changed  chan struct{} // closed and renewed whenever boxes or conns change
}

// Run serves a keeper until ctx is done, its lifeline ends or a client stops
// it. It then kills and reaps every sandbox and removes the directory. An
// error tells that something could not be given back: the directory stays for
// [Reap].
func Run(ctx context.Context, o Options) error {
	o = o.withDefaults()
	if err := sock.CheckDir(o.Dir); err != nil {
		return err
	}
	lock, err := ownLock(o)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := writeOwner(o.Dir, o.Kind); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, sandboxesDir), 0o700); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot make a directory: %w", err).WithField("dir", o.Dir)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	k := &keeper{
		opts: o, instance: rand.Text(), life: life,
		creates:  make(chan struct{}, o.MaxCreates),
		stopping: make(chan struct{}),
		boxes:    map[sandbox.ID]*box{},
		changed:  make(chan struct{}),
	}
	k.tickets = newTickets(o.TicketTimeout)
	err = k.serve(ctx)
	return errors.Join(err, k.shutdown())
}

func ownLock(o Options) (*os.File, error) {
	if o.Lock == nil {
		return TryLock(o.Dir)
	}
	if err := AdoptLock(o.Lock, o.Dir); err != nil {
		o.Lock.Close()
		return nil, err
	}
	return o.Lock, nil
}

// serve runs until something ends the keeper. Each actor has an owner that
// waits for it.
func (k *keeper) serve(ctx context.Context) error {
	main, err := k.listener(k.opts.Socket, wire.SocketName)
	if err != nil {
		return err
	}
	fds, err := k.listener(k.opts.FDSocket, wire.FDSocketName)
	if err != nil {
		main.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	k.addServers(ctx, &g, cancel, main, fds)
	g.Add(func() error {
		select {
		case <-ctx.Done():
		case <-k.stopping:
			k.awaitLeave(ctx)
		}
		return nil
	}, func(error) { cancel() })
	if k.opts.Lifeline != nil {
		g.Add(func() error {
			io.Copy(io.Discard, k.opts.Lifeline)
			return nil
		}, func(error) { k.opts.Lifeline.Close() })
	}
	if k.opts.IdleExit > 0 {
		g.Add(func() error { k.watchIdle(ctx); return nil }, func(error) { cancel() })
	}
	g.Add(func() error { k.watchLog(ctx); return nil }, func(error) { cancel() })
	g.Add(func() error { watchHeap(ctx); return nil }, func(error) { cancel() })
	if k.opts.Ready != nil {
		k.opts.Ready()
	}
	return g.Run()
}

func (k *keeper) listener(given net.Listener, name string) (net.Listener, error) {
	if given != nil {
		return given, nil
	}
	os.Remove(filepath.Join(k.opts.Dir, name)) // a dead keeper's: the lock is ours
	return sock.Listen(k.opts.Dir, name)
}

// stop asks the keeper to end.
func (k *keeper) stop() { k.stopOnce.Do(func() { close(k.stopping) }) }

// shutdown gives everything back. No request is being served any more.
func (k *keeper) shutdown() error {
	k.mu.Lock()
	k.draining = true
	k.mu.Unlock()
	err := k.removeAll()
	k.tickets.close()
	if err != nil {
		return err
	}
	return removeKeeperDir(k.opts.Dir)
}

// removeAll removes every sandbox, all at the same time.
func (k *keeper) removeAll() error {
	boxes := k.all()
	errs := make([]error, len(boxes))
	var wg sync.WaitGroup
	for i, b := range boxes {
		wg.Go(func() { errs[i] = b.remove(k.life) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (k *keeper) all() []*box {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.boxes))
}

// leaveGrace is how long clients may take to read their last answers.
const leaveGrace = 500 * time.Millisecond

// awaitLeave returns when every client has left, or had time to.
func (k *keeper) awaitLeave(ctx context.Context) {
	after := time.After(leaveGrace)
	for {
		k.mu.Lock()
		gone, changed := k.conns == 0, k.changed
		k.mu.Unlock()
		if gone {
			return
		}
		select {
		case <-changed:
		case <-after:
			return
		case <-ctx.Done():
			return
		}
	}
}

// watchIdle returns when there has been neither connection nor sandbox, but
// parked ones, for IdleExit.
func (k *keeper) watchIdle(ctx context.Context) {
	for {
		k.mu.Lock()
		idle, changed := k.idle(), k.changed
		k.mu.Unlock()
		var after <-chan time.Time
		if idle {
			after = time.After(k.opts.IdleExit)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-after:
			return
		}
	}
}

// change tells watchers that boxes or conns have changed; k.mu is held.
func (k *keeper) change() {
	close(k.changed)
	k.changed = make(chan struct{})
	if k.draining && len(k.boxes) == 0 {
		k.stop()
	}
}

func (k *keeper) find(id sandbox.ID) *box {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.boxes[id]
}
