// Package holding joins the template store to the manager's contracts:
// [Templates] resolves, and [Keepers] notes which template each sandbox of a
// keeper uses for as long as it does, so that none is removed under it.
package holding

import (
	"context"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

// Templates returns the store as the manager sees it.
func Templates(s *template.Store) manager.Templates { return templates{s} }

type templates struct{ s *template.Store }

func (t templates) Resolve(ctx context.Context, name, user string) (manager.Resolved, error) {
	root, of, err := t.s.Resolve(ctx, name)
	if err != nil {
		return manager.Resolved{}, err
	}
	id, err := template.User(root, user)
	if err != nil {
		return manager.Resolved{}, err
	}
	return manager.Resolved{Root: root, User: id, Template: of}, nil
}

func (t templates) List(ctx context.Context) ([]sandbox.Template, error) { return t.s.List(ctx) }

// Keepers returns k with every create preceded by a hold on its template and
// every delete followed by its end. dir is where keepers have their
// directories; each holds a file called lock in its own for life.
func Keepers(k manager.Keepers, s *template.Store, dir string) manager.Keepers {
	return &keepers{Keepers: k, s: s, dir: dir}
}

type keepers struct {
	manager.Keepers
	s   *template.Store
	dir string
}

func (k *keepers) Acquire(ctx context.Context, load func(name string) int) (manager.Keeper, error) {
	one, err := k.Keepers.Acquire(ctx, load)
	if err != nil {
		return nil, err
	}
	return k.wrap(one), nil
}

func (k *keepers) Adopt(ctx context.Context) ([]manager.Keeper, error) {
	all, err := k.Keepers.Adopt(ctx)
	out := make([]manager.Keeper, len(all))
	for i, one := range all {
		out[i] = k.wrap(one)
	}
	return out, err
}

func (k *keepers) wrap(one manager.Keeper) manager.Keeper {
	return &keeper{Keeper: one, s: k.s, lock: filepath.Join(k.dir, one.Name(), "lock")}
}

type keeper struct {
	manager.Keeper
	s    *template.Store
	lock string
}

// Create holds the template of what is somebody's. A sandbox that is parked does
// not keep a template from being removed: nobody can claim it then.
func (k *keeper) Create(ctx context.Context, req *wire.Create) (*wire.Created, error) {
	if req.Park != "" {
		return k.Keeper.Create(ctx, req)
	}
	if err := k.s.Hold(ctx, req.Root, req.ID, k.lock); err != nil {
		return nil, err
	}
	made, err := k.Keeper.Create(ctx, req)
	if err != nil && sandbox.KindOf(err) != sandbox.Unavailable {
		k.release(ctx, req.Root, req.ID) // without an answer the sandbox may be there: Delete tells
	}
	return made, err
}

// Claim holds the template first, so that it is neither removed nor made anew
// while the keeper compares its root with that of the parked sandbox.
func (k *keeper) Claim(ctx context.Context, parked sandbox.ID, req *wire.Claim) (*wire.Created, error) {
	if err := k.s.Hold(ctx, req.Root, req.As, k.lock); err != nil {
		return nil, err
	}
	made, err := k.Keeper.Claim(ctx, parked, req)
	if err != nil && sandbox.KindOf(err) != sandbox.Unavailable {
		k.release(ctx, req.Root, req.As)
	}
	return made, err
}

func (k *keeper) Delete(ctx context.Context, id sandbox.ID) (wire.Status, error) {
	st, err := k.Keeper.Delete(ctx, id)
	if err == nil {
		k.release(ctx, driver.Root{}, id)
	}
	return st, err
}

// release ends a hold. One that stays lapses with its keeper, so a failure
// costs no more than a refused removal.
func (k *keeper) release(ctx context.Context, root driver.Root, id sandbox.ID) {
	ctx = context.WithoutCancel(ctx)
	if root.Path != "" {
		_ = k.s.Release(ctx, root, id)
		return
	}
	_ = k.s.ReleaseID(ctx, id)
}
