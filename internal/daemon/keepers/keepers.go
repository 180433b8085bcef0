// Package keepers runs the keepers of a daemon: it implements the manager's
// contract over keeper processes, which it starts through a [Launcher] and
// speaks with over their sockets.
//
// Keepers outlive the daemon. Which sandboxes a keeper has is the keeper's to
// say; the pool remembers only the keepers themselves. Directories of the kind
// "run" belong to a `belljar run` and are left alone while they live.
package keepers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// Launcher starts keepers and cleans up after dead ones.
type Launcher interface {
	// Start makes a keeper's directory and returns it when the keeper serves.
	Start(ctx context.Context) (dir string, err error)
	// Reap gives back what a dead keeper has left and removes its directory. A
	// directory that is gone is no error; one whose keeper lives is.
	Reap(ctx context.Context, dir string) error
}

// Options wire a [Pool].
type Options struct {
	Dir      string // RUN/keepers
	Launcher Launcher
	// Max is how many sandboxes one keeper is given; more start another, so
	// that one that dies takes no more with it. Default 64.
	Max int
	// Own has Close end every keeper, with its sandboxes: for a program
	// without a daemon.
	Own bool
	Log *slog.Logger
}

// Pool is the keepers of one daemon. It is safe for concurrent use.
type Pool struct {
	o Options

	starting chan struct{} // one token: one keeper is started at a time

	mu      sync.Mutex
	all     map[string]*keeper
	reaping map[string]chan struct{} // with a token for the one who reaps what bears the name
}

var _ manager.Keepers = (*Pool)(nil)

// New returns a pool without keepers.
func New(o Options) *Pool {
	if o.Max == 0 {
		o.Max = 64
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool{o: o, starting: make(chan struct{}, 1), all: map[string]*keeper{}, reaping: map[string]chan struct{}{}}
}

// Acquire returns the fullest keeper that has room, starting one when none
// has. Of many at once one starts it and the others wait.
func (p *Pool) Acquire(ctx context.Context, load func(name string) int) (manager.Keeper, error) {
	if k := p.pick(load); k != nil {
		return k, nil
	}
	select {
	case p.starting <- struct{}{}:
		defer func() { <-p.starting }()
	case <-ctx.Done():
		return nil, sandbox.Errorf(sandbox.Canceled, "given up while a keeper was starting").WithCause(ctx.Err())
	}
	if k := p.pick(load); k != nil {
		return k, nil // another has started it meanwhile
	}
	dir, err := p.o.Launcher.Start(ctx)
	if err != nil {
		return nil, err
	}
	return p.open(ctx, dir)
}

// open connects to a keeper that serves.
func (p *Pool) open(ctx context.Context, dir string) (*keeper, error) {
	c := keeperclient.New(dir)
	h, err := c.Hello(ctx)
	// A keeper of another build is kept for the sandboxes that it has.
	if err != nil && (h.Instance == "" || h.Protocol != wire.Protocol) {
		return nil, errors.Join(err, c.Close())
	}
	k := &keeper{Client: c, dir: dir, instance: h.Instance, old: err != nil || h.Draining}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[k.Name()] = k
	return k, nil
}

func (p *Pool) pick(load func(name string) int) *keeper {
	var best *keeper
	most := -1
	for _, k := range p.keepers() {
		n := load(k.Name())
		if !k.old && n < p.o.Max && n > most && k.Alive() {
			best, most = k, n
		}
	}
	return best
}

func (p *Pool) keepers() []*keeper {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*keeper, 0, len(p.all))
	for _, k := range p.all {
		out = append(out, k)
	}
	return out
}

// Adopt connects to the keepers of an earlier daemon.
func (p *Pool) Adopt(ctx context.Context) ([]manager.Keeper, error) {
	dirs, err := p.dirs()
	if err != nil {
		return nil, err
	}
	var out []manager.Keeper
	for _, dir := range dirs {
		if kind(dir) != "daemon" || !held(dir) {
			continue
		}
		k, err := p.open(ctx, dir)
		if err != nil {
			p.o.Log.Error("a keeper cannot be adopted", "dir", dir, "err", err)
			continue
		}
		out = append(out, k)
	}
	return out, nil
}

// dirs lists the directories of keepers, dead and alive.
func (p *Pool) dirs() (out []string, err error) {
	names, err := os.ReadDir(p.o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.Internal, "the keepers cannot be listed: %w", err).WithField("directory", p.o.Dir)
	}
	for _, n := range names {
		if n.IsDir() && !unfinished(n) {
			out = append(out, filepath.Join(p.o.Dir, n.Name()))
		}
	}
	return out, nil
}

// unfinishedAge is how old a directory is before its maker counts as dead
// although it has not given it its name yet.
const unfinishedAge = time.Minute

// unfinished reports whether somebody may still be making a directory: it has
// no lock yet.
func unfinished(e os.DirEntry) bool {
	if !strings.HasPrefix(e.Name(), ".") {
		return false
	}
	info, err := e.Info()
	return err != nil || time.Since(info.ModTime()) < unfinishedAge
}

// Reap removes what dead keepers have left: of all with name "". Of several at
// once for one keeper one does it and the others find it done.
func (p *Pool) Reap(ctx context.Context, name string) error {
	if name != "" {
		dir := filepath.Join(p.o.Dir, filepath.Base(name))
		p.forget(name)
		return p.reap(ctx, dir)
	}
	dirs, err := p.dirs()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if !held(dir) {
			errs = append(errs, p.reap(ctx, dir))
		}
	}
	return errors.Join(errs...)
}

// reap gives back what is in a directory. The reaper holds its lock meanwhile,
// as the keeper did.
func (p *Pool) reap(ctx context.Context, dir string) error {
	p.mu.Lock()
	turn := p.reaping[dir]
	if turn == nil {
		turn = make(chan struct{}, 1)
		p.reaping[dir] = turn
	}
	p.mu.Unlock()
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return sandbox.Errorf(sandbox.Canceled, "given up while a dead keeper was being cleaned up after").WithCause(ctx.Err())
	}
	defer func() { <-turn }()
	err := p.o.Launcher.Reap(ctx, dir)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.reaping, dir) // who still waits has its turn, and finds nothing
	}
	return err
}

// forget lets go of a keeper that has died.
func (p *Pool) forget(name string) {
	p.mu.Lock()
	k := p.all[name]
	if k != nil && !k.Alive() {
		delete(p.all, name)
	}
	p.mu.Unlock()
	if k != nil && !k.Alive() {
		_ = k.Close() // its process is gone
	}
}

// Probe asks a keeper, starting one when there is none.
func (p *Pool) Probe(ctx context.Context) ([]driver.Report, error) {
	k, err := p.Acquire(ctx, func(string) int { return 0 })
	if err != nil {
		return nil, err
	}
	return k.(*keeper).Client.Probe(ctx)
}

// Close ends the keepers that have no sandbox, or all when they are the
// pool's own, and lets go of the others.
func (p *Pool) Close(ctx context.Context) error {
	var errs []error
	for _, k := range p.keepers() {
		list, err := k.List(ctx)
		if k.Alive() && (p.o.Own || err == nil && len(list) == 0) {
			errs = append(errs, k.Stop(ctx, false))
		}
		errs = append(errs, k.Close())
	}
	return errors.Join(errs...)
}

// owner is what is read of a keeper's owner.json.
type owner struct {
	Kind string `json:"kind"`
}

// kind tells whose keeper a directory holds: "daemon" or "run".
func kind(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "owner.json"))
	var o owner
	if err != nil || json.Unmarshal(b, &o) != nil {
		return ""
	}
	return o.Kind
}

// held reports whether a living process holds the lock of a keeper's
// directory.
func held(dir string) bool {
	held, err := lifelock.Held(filepath.Join(dir, "lock"))
	return held && err == nil
}

// keeper is one keeper process.
type keeper struct {
	*keeperclient.Client
	dir      string
	instance string
	old      bool // takes no new sandboxes
	gone     atomic.Bool
}

var _ manager.Keeper = (*keeper)(nil)

func (k *keeper) Name() string     { return filepath.Base(k.dir) }
func (k *keeper) Instance() string { return k.instance }

// Alive reports whether the process holds its lock. One that has been seen dead
// stays so: the lock is the reaper's then.
func (k *keeper) Alive() bool {
	if !k.gone.Load() && !held(k.dir) {
		k.gone.Store(true)
	}
	return !k.gone.Load()
}

// Guest returns the way to a guest.
func (k *keeper) Guest(id sandbox.ID, generation uint64) http.RoundTripper {
	return k.Client.Guest(id, generation)
}
