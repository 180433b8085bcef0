package cli

import (
	"context"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
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
