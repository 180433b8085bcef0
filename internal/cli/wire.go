package cli

import (
	"context"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

// boundaries are those that belljar-engine runs, strongest first.
var boundaries = []sandbox.Boundary{sandbox.GVisor}

// guestPath is belljar-guest beside this program.
func guestPath() (string, error) {
	dir, err := host.Dir()
	if err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "this program cannot find itself: %w", err).WithHint("is /proc mounted?")
	}
	return filepath.Join(dir, host.Guest), nil
}

// templateSource is the store as the manager sees it.
type templateSource struct{ *template.Store }

// Resolve finds a template and a user in it.
func (t templateSource) Resolve(ctx context.Context, name, user string) (manager.Resolved, error) {
	root, _, err := t.Store.Resolve(ctx, name)
	if err != nil {
		return manager.Resolved{}, err
	}
	id, err := template.User(root, user)
	return manager.Resolved{Root: root, User: id}, err
}

// holding has every sandbox hold the template that it reads its files from,
// for as long as its keeper lives or until it is given back.
type holding struct {
	manager.Keepers
	store *template.Store
	dirs  config.Dirs
}

// Acquire wraps the keeper that it gets.
func (h *holding) Acquire(ctx context.Context, load func(string) int) (manager.Keeper, error) {
	k, err := h.Keepers.Acquire(ctx, load)
	if err != nil {
		return nil, err
	}
	return &holdingKeeper{k, h}, nil
}

// Adopt wraps the keepers that it gets.
func (h *holding) Adopt(ctx context.Context) ([]manager.Keeper, error) {
	list, err := h.Keepers.Adopt(ctx)
	for i, k := range list {
		list[i] = &holdingKeeper{k, h}
	}
	return list, err
}

type holdingKeeper struct {
	manager.Keeper
	h *holding
}

// Create holds the template first: one that is removed meanwhile fails the
// create instead of the sandbox.
func (k *holdingKeeper) Create(ctx context.Context, req *wire.Create) (*wire.Created, error) {
	lock := filepath.Join(k.h.dirs.Keepers(), k.Name(), "lock")
	if err := k.h.store.Hold(ctx, req.Root, req.ID, lock); err != nil {
		return nil, err
	}
	made, err := k.Keeper.Create(ctx, req)
	if err != nil {
		// Should this fail the hold lapses with the keeper.
		_ = k.h.store.Release(context.WithoutCancel(ctx), req.Root, req.ID)
	}
	return made, err
}

// Delete gives the template free when nothing of the sandbox is left.
func (k *holdingKeeper) Delete(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	st, err := k.Keeper.Delete(ctx, id)
	if err == nil {
		_ = k.h.store.ReleaseID(ctx, id) // as in Create
	}
	return st, err
}

// launcher starts the daemon's keepers.
type launcher struct{ o launch.Options }

// Start returns when the keeper serves.
func (l launcher) Start(ctx context.Context) (string, error) {
	p, err := launch.Start(ctx, l.o)
	if err != nil {
		return "", err
	}
	if err := p.Ready(ctx); err != nil {
		// It never served: what it may have left is removed here.
		if cerr := p.Close(context.WithoutCancel(ctx)); cerr != nil {
			return "", sandbox.AsError(err).WithCause(cerr)
		}
		return "", err
	}
	return p.Dir, nil
}

// Reap gives back what a dead keeper has left.
func (l launcher) Reap(ctx context.Context, dir string) error { return launch.Reap(ctx, dir, l.o) }
