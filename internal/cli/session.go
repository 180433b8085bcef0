package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"sync"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/daemon/httpapi"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/internal/template/holding"
	"github.com/belljar-sh/belljar/sandbox"
)

// session is an installation for one run: a keeper of our own, a manager in
// this process and a client of it. Nothing of it is left when it is closed, or
// when this process dies: the keeper's lifeline ends with us.
type session struct {
	client  *client.Client
	manager *manager.Manager
	keeper  *launch.Process
	store   *template.Store

	runtimeDir string
	kill       func(ctx context.Context) error // with a daemon: of the one sandbox

	warn func(format string, args ...any)
}

// ephemeral starts a session. The engine needs the longest of all to start,
// so it comes first, and nothing waits for it here.
func (a *app) ephemeral(ctx context.Context) (*session, error) {
	dirs, err := userDirs()
	if err != nil {
		return nil, err
	}
	guest, err := guestPath()
	if err != nil {
		return nil, err
	}
	p, err := launch.Start(ctx, launch.Options{RuntimeDir: dirs.Runtime, Kind: "run", Lifeline: true})
	if err != nil {
		return nil, err
	}
	if err := dirs.MakeState(); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	store := template.New(dirs.Templates(), template.Options{})
	m, err := manager.Open(ctx, manager.Options{
		Keepers:    holding.Keepers(&ownKeepers{p: p}, store, dirs.Keepers()),
		Templates:  holding.Templates(store),
		Boundaries: boundaries,
		Guest:      guest,
		Build:      build.ID(),
	})
	if err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	api := httpapi.New(httpapi.Options{
		Manager: m, Version: build.Version, Build: build.ID(), Mode: "in-process", Instance: rand.Text(),
		StateDir: dirs.State, RuntimeDir: dirs.Runtime,
	})
	return &session{
		client: client.New(client.InProcess(api)), manager: m, keeper: p, store: store, runtimeDir: dirs.Runtime, warn: a.warn,
	}, nil
}

// sweep gives back what keepers that were killed have left: nobody else might
// come by on a machine where no daemon runs. It comes last, when runs that began
// beside ours may have been killed too, and costs nothing when there is nothing.
func sweep(ctx context.Context, runtimeDir string, store *template.Store) error {
	return errors.Join(launch.ReapStale(ctx, launch.Options{RuntimeDir: runtimeDir}), store.Sweep(ctx))
}

// close kills the sandbox, ends the keeper and returns when nothing is left.
func (s *session) close(ctx context.Context) error {
	if s.kill != nil {
		err := s.kill(ctx)
		s.client.Close()
		return err
	}
	err := s.manager.Close(ctx)
	s.client.Close()
	if serr := sweep(ctx, s.runtimeDir, s.store); serr != nil && !errors.Is(serr, context.Canceled) && sandbox.KindOf(serr) != sandbox.Canceled {
		s.warn("what an earlier run has left cannot be removed: %v", serr)
	}
	return err
}

// ownKeepers is the one keeper of a session.
type ownKeepers struct {
	p *launch.Process

	once sync.Once
	k    *ownKeeper
	err  error
}

// Acquire says hello to the keeper, which may still be starting: its socket
// listens already.
func (o *ownKeepers) Acquire(ctx context.Context, _ func(string) int) (manager.Keeper, error) {
	o.once.Do(func() {
		c := o.p.Client()
		h, err := c.Hello(ctx)
		if err != nil {
			o.err = errors.Join(o.p.Explain(err), c.Close())
			return
		}
		o.k = &ownKeeper{Client: c, p: o.p, instance: h.Instance}
	})
	if o.err != nil {
		return nil, o.err
	}
	return o.k, nil
}

// Adopt finds nothing: a session is new.
func (o *ownKeepers) Adopt(context.Context) ([]manager.Keeper, error) { return nil, nil }

// Reap leaves it to Close, which reaps what a keeper that died has left.
func (o *ownKeepers) Reap(context.Context, string) error { return nil }

// Probe asks the keeper.
func (o *ownKeepers) Probe(ctx context.Context) ([]driver.Report, error) {
	if _, err := o.Acquire(ctx, nil); err != nil {
		return nil, err
	}
	return o.k.Client.Probe(ctx)
}

// Close ends the keeper and returns when it has gone with all its sandboxes.
func (o *ownKeepers) Close(ctx context.Context) error {
	err := o.p.Close(ctx)
	if o.k != nil {
		err = errors.Join(err, o.k.Client.Close())
	}
	return err
}

type ownKeeper struct {
	*keeperclient.Client
	p        *launch.Process
	instance string
}

// Name is that of the keeper's directory.
func (k *ownKeeper) Name() string { return k.p.Name }

// Instance tells one process from another.
func (k *ownKeeper) Instance() string { return k.instance }

// Alive reports whether the keeper's process runs.
func (k *ownKeeper) Alive() bool {
	select {
	case <-k.p.Done():
		return false
	default:
		return true
	}
}

// Guest returns the way to a guest.
func (k *ownKeeper) Guest(id sandbox.ID, generation uint64) http.RoundTripper {
	return k.Client.Guest(id, generation)
}
