// Package daemon is the life of a user's daemon: one per user, started on
// demand, serving the public API on a unix socket, ending when it is idle and
// empty. It wires manager, journal and API; what they do is theirs.
//
// A daemon holds RUN/daemon.lock for life. Its sandboxes outlive it: keepers
// parent them, and the next daemon adopts them.
package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/daemon/dataplane"
	"github.com/belljar-sh/belljar/internal/daemon/httpapi"
	"github.com/belljar-sh/belljar/internal/e2b"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/internal/store"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options wire a daemon.
type Options struct {
	Dirs       config.Dirs
	Keepers    manager.Keepers
	Templates  manager.Templates
	Boundaries []sandbox.Boundary // that the keepers run, strongest first
	Guest      string             // path of belljar-guest
	Version    string
	Build      string
	// Grace is how long the daemon stays without a request and without a sandbox
	// that is not paused. Default 5 minutes.
	Grace time.Duration
	Log   *slog.Logger
	// CrashPoints has the daemon kill itself at the manager's crash point that
	// the environment variable BELLJAR_CRASH names. Tests only.
	CrashPoints bool
}

const (
	defaultGrace = 5 * time.Minute
	// lingerTime is how long a daemon that ends still takes connections after
	// its sockets' names are gone: nobody who found them is turned away.
	lingerTime = 50 * time.Millisecond
	// drainTime bounds the wait for requests that are under way.
	drainTime = 15 * time.Second
)

// Run is the daemon. It returns when ctx ends, when it is told to stop, or
// when it is idle and empty; sandboxes live on unless it was told to kill
// them. A second daemon of the user fails with [sandbox.AlreadyExists].
func Run(ctx context.Context, o Options) (err error) {
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(o.Dirs.MakeRuntime(), o.Dirs.MakeState()); err != nil {
		return err
	}
	held, err := lock(o.Dirs)
	if err != nil {
		return err
	}
	defer held.Close() // last of all
	d := &daemon{o: o, base: ctx, stop: make(chan bool, 1), activity: make(chan struct{}, 1)}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.open(ctx); err != nil {
		d.refuse(err)
		return err
	}
	o.Log.Info("the daemon serves", "socket", o.Dirs.DaemonSocket(), "build", o.Build, "adopted", d.m.Live())
	kill := d.wait(ctx)
	d.unlink()
	time.Sleep(lingerTime)
	d.drain(ctx)
	if kill {
		err = d.m.KillAll(context.WithoutCancel(ctx), sandbox.EndStopped)
	}
	return err
}

type daemon struct {
	o        Options
	base     context.Context // Run's
	stop     chan bool
	activity chan struct{}

	journal *store.Store[manager.Record]
	m       *manager.Manager
	api     *httpapi.Server
	e2b     *e2b.Handler
	sockets []net.Listener
	http    *http.Server
	cancel  context.CancelFunc // ends streams
	wg      sync.WaitGroup

	mu       sync.Mutex
	requests int
}

// open binds the sockets first: callers wait in their queues while sandboxes
// are being adopted.
func (d *daemon) open(ctx context.Context) error {
	api, err := listen(d.o.Dirs.DaemonSocket())
	if err != nil {
		return err
	}
	d.sockets = append(d.sockets, api)
	fds, err := listen(d.o.Dirs.FDSocket())
	if err != nil {
		return err
	}
	d.sockets = append(d.sockets, fds)
	d.journal, err = store.Open(ctx, d.o.Dirs.Database(), func(r *manager.Record) sandbox.ID { return r.Sandbox.ID })
	if err != nil {
		return err
	}
	key, err := image.LoadKey(d.o.Dirs.Key())
	if err != nil {
		return err
	}
	d.m, err = manager.Open(ctx, manager.Options{
		Keepers: d.o.Keepers, Templates: d.o.Templates, Journal: d.journal,
		Boundaries: d.o.Boundaries, Guest: d.o.Guest, Build: d.o.Build,
		LogDir: d.o.Dirs.Logs(), PoolFile: d.o.Dirs.Pools(), QuotaFile: d.o.Dirs.Quota(), Database: d.o.Dirs.Database(), Log: d.o.Log, Crash: d.crash(),
		Images: image.New(d.o.Dirs.Images(), key), Snapshots: image.New(d.o.Dirs.Snapshots(), key), Forks: image.New(d.o.Dirs.Forks(), key),
		Prepared: image.New(d.o.Dirs.Prepared(), key),
	})
	if err != nil {
		return err
	}
	streams, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	d.api = httpapi.New(httpapi.Options{
		Manager: d.m, Version: d.o.Version, Build: d.o.Build, Mode: "daemon", Instance: rand.Text(),
		StateDir: d.o.Dirs.State, RuntimeDir: d.o.Dirs.Runtime,
		Stop: d.requestStop, Streams: streams, Log: d.o.Log,
	})
	// No access tokens: who reaches the socket is the daemon's own user.
	d.e2b = e2b.New(e2b.Options{Sandboxes: dataplane.New(d.m), Base: streams, Log: d.o.Log})
	d.http = &http.Server{
		Handler:           http.HandlerFunc(d.serve),
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       10 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(d.o.Log.Handler(), slog.LevelWarn),
	}
	d.wg.Go(func() { _ = d.http.Serve(ownPeers{api, d.o.Log}) }) // ends with Shutdown
	d.wg.Go(func() { serveFiles(ownPeers{fds, d.o.Log}, d.m, d.o.Log) })
	return nil
}

// refuse tells those who wait already why there will be no daemon.
func (d *daemon) refuse(err error) {
	if len(d.sockets) == 0 {
		return
	}
	d.http = &http.Server{
		Handler: httpapi.Refusal(d.o.Build, err), ReadHeaderTimeout: lingerTime, ReadTimeout: drainTime,
		ErrorLog: slog.NewLogLogger(d.o.Log.Handler(), slog.LevelDebug),
	}
	d.http.SetKeepAlivesEnabled(false)
	api := d.sockets[0]
	d.unlink()                                                                       // before anybody is answered: who tries again gets another daemon
	d.wg.Go(func() { _ = d.http.Serve(ownPeers{api.(*net.UnixListener), d.o.Log}) }) // ends with Shutdown
	time.Sleep(lingerTime)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.base), 10*lingerTime)
	defer cancel()
	if d.http.Shutdown(ctx) != nil {
		_ = d.http.Close()
	}
}

// crash returns what happens at crash points: nothing outside of tests.
func (d *daemon) crash() func(string) {
	point := os.Getenv("BELLJAR_CRASH")
	if !d.o.CrashPoints || point == "" {
		return nil
	}
	return func(p string) {
		if p == point {
			die()
		}
	}
}

// serve counts requests: a daemon with one is not idle.
func (d *daemon) serve(w http.ResponseWriter, r *http.Request) {
	d.count(1)
	defer d.count(-1)
	if e2b.Mine(r) {
		d.e2b.ServeHTTP(w, r)
		return
	}
	d.api.ServeHTTP(w, r)
}

func (d *daemon) count(by int) {
	d.mu.Lock()
	d.requests += by
	d.mu.Unlock()
	select {
	case d.activity <- struct{}{}:
	default:
	}
}

func (d *daemon) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests > 0 || d.m.Active() > 0
}

func (d *daemon) requestStop(kill bool) {
	select {
	case d.stop <- kill:
	default: // it is stopping
	}
}

// wait returns when the daemon is to end, and whether its sandboxes are to be
// killed.
func (d *daemon) wait(ctx context.Context) (kill bool) {
	idle := time.NewTimer(d.o.Grace)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			d.o.Log.Info("the daemon ends", "why", "it was told to by a signal", "live", d.m.Live())
			return false
		case kill := <-d.stop:
			d.o.Log.Info("the daemon ends", "why", "it was told to", "live", d.m.Live(), "kill", kill)
			return kill
		case <-d.activity:
			idle.Reset(d.o.Grace)
		case <-idle.C:
			if !d.busy() {
				d.o.Log.Info("the daemon ends", "why", "idle")
				return false
			}
			idle.Reset(d.o.Grace)
		}
	}
}

// unlink removes the names of the sockets. Who comes from now on starts the
// next daemon, which waits for our lock.
func (d *daemon) unlink() {
	for _, path := range []string{d.o.Dirs.DaemonSocket(), d.o.Dirs.FDSocket()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.o.Log.Warn("a socket was not removed", "err", err)
		}
	}
}

// drain ends streams, which their readers take up again elsewhere, and waits
// for the other requests.
func (d *daemon) drain(ctx context.Context) {
	d.cancel()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := d.http.Shutdown(ctx); err != nil {
		d.o.Log.Warn("requests were cut off", "err", err)
		_ = d.http.Close()
	}
}

// close gives back what open has taken, as far as it got. Sandboxes live on.
func (d *daemon) close() error {
	var errs []error
	for _, l := range d.sockets {
		_ = l.Close() // the server has closed it already when it served
	}
	if d.cancel != nil {
		d.cancel()
	}
	d.wg.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.base), drainTime)
	defer cancel()
	if d.e2b != nil {
		d.e2b.Close()
	}
	if d.m != nil {
		errs = append(errs, d.m.Close(ctx))
	}
	if d.journal != nil {
		errs = append(errs, d.journal.Close())
	}
	return errors.Join(errs...)
}

// die ends the process as kill -9 does.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it strikes
}
