package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) createCommand() *cobra.Command {
	var s specFlags
	var f *format
	var rm bool
	cmd := &cobra.Command{
		Use:   "create [flags] [-- CMD [ARG...]]",
		Short: "make a sandbox that stays",
		Long: `Create makes a sandbox that lives until it is killed, until its --timeout or
until this machine restarts, and prints its ID. With a command that is started
in it, detached: see belljar logs. The user's daemon is started when there is
none.`,
		Example: "  belljar create --name work -v .:/workspace -w /workspace\n  belljar exec work -- ls\n  belljar create --timeout 10m -- python3 -m http.server",
		RunE: func(cmd *cobra.Command, argv []string) error {
			spec, vols, err := s.spec(cmd, argv, a.warn)
			if err != nil {
				return err
			}
			defer closeVolumes(vols)
			if rm && len(argv) == 0 {
				return usagef("name a command behind --, or bound its life with --timeout", "--rm kills a sandbox when its command has ended: there is none")
			}
			spec.AutoRemove = rm
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err = a.create(ctx, spec, vols, argv, *f)
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	s.add(cmd)
	cmd.Flags().BoolVar(&rm, "rm", false, "kill it when CMD has ended")
	f = a.formatFlag(cmd)
	return cmd
}

// create makes a sandbox in the daemon and prints it.
func (a *app) create(ctx context.Context, spec sandbox.Spec, vols []*volume, argv []string, f format) error {
	c, err := a.daemon(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := sendVolumes(ctx, c, &spec, vols); err != nil {
		return err
	}
	var start *client.Start
	if len(argv) > 0 {
		start = &client.Start{Argv: argv, Capture: true, Keep: true}
	}
	progress := a.progress("creating a sandbox")
	made, err := c.Create(ctx, spec, start)
	progress.end()
	if err != nil {
		return err
	}
	switch {
	case f.machine():
		err = encode(a.out, f, made)
	case made.StartError != nil && spec.AutoRemove: // it is gone
	default:
		_, err = fmt.Fprintln(a.out, made.Sandbox.ID)
	}
	if err != nil {
		return err
	}
	a.tellIsolation(made.Sandbox.Isolation)
	if made.StartError != nil {
		if made.Sandbox.AutoRemove {
			return a.startFailure(made.StartError)
		}
		a.warn("the sandbox %s exists, its command was not started", made.Sandbox.ID)
		return a.startFailure(made.StartError)
	}
	return nil
}

// tellIsolation warns of a boundary that is weaker than the one asked for.
func (a *app) tellIsolation(i sandbox.Isolation) {
	if i.Requested != sandbox.Auto && i.Effective != i.Requested {
		a.warn("the boundary is %s instead of %s: %s", i.Effective, i.Requested, i.Reason)
	}
}

// ttyErr reports whether a person watches standard error.
func (a *app) ttyErr() bool { return terminal.IsTerminal(a.err) }
