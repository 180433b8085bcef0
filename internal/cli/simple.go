package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) versionCommand() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.machine() {
				return encode(a.out, *f, map[string]string{"version": build.Version, "build": build.ID()})
			}
			return a.printVersion()
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) printVersion() error {
	_, err := fmt.Fprintf(a.out, "belljar %s\n", build.ID())
	return err
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "print a completion script for a shell",
		Example:   "  source <(belljar completion bash)\n  belljar completion fish > ~/.config/fish/completions/belljar.fish",
		Args:      between(1, 1),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, argv []string) error {
			switch argv[0] {
			case "zsh":
				return cmd.Root().GenZshCompletion(a.out)
			case "fish":
				return cmd.Root().GenFishCompletion(a.out, true)
			case "bash":
				return cmd.Root().GenBashCompletionV2(a.out, true)
			}
			return usagef("choose bash, zsh or fish", "there is no completion script for %q", argv[0])
		},
	}
}

func (a *app) killCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:               "kill SANDBOX...",
		Aliases:           []string{"rm"},
		Short:             "end sandboxes and remove all that is left of them",
		Long:              "Kill ends sandboxes, by name or ID, and returns when nothing of them is left on\nthe host. A sandbox that is dead already is no error.",
		Example:           "  belljar kill work\n  belljar kill --all",
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			if all == (len(refs) > 0) {
				return usagef("usage: belljar kill SANDBOX..., or belljar kill --all", "belljar kill: name sandboxes or say --all")
			}
			return a.kill(cmd.Context(), refs, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "end every sandbox of this user's daemon")
	cmd.Flags().BoolP("force", "f", false, "accepted for those who are used to it: kill never asks")
	return cmd
}

func (a *app) kill(ctx context.Context, refs []string, all bool) error {
	c, err := a.running(ctx)
	if err != nil || c == nil {
		if err == nil && !all {
			err = noSandbox(refs[0])
		}
		return err
	}
	defer c.Close()
	if all {
		list, err := c.List(ctx, false)
		if err != nil {
			return err
		}
		for _, s := range list {
			refs = append(refs, string(s.ID))
		}
	}
	var failed error
	for _, ref := range refs {
		if _, err := c.Kill(ctx, ref); err != nil {
			failed = exitStatus(a.report(err))
			continue
		}
		if _, err := fmt.Fprintln(a.out, ref); err != nil {
			return err
		}
	}
	return failed
}

// running returns a client of the daemon, nil when this user never had one:
// then there are no sandboxes either. One that has ended may have left some
// behind, which the journal tells, so it is started again; and so it is when it
// ends while the client is used.
func (a *app) running(ctx context.Context) (*client.Client, error) {
	dirs, err := userDirs()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dirs.Database()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return a.daemon(ctx)
}

func noSandbox(ref string) error {
	return sandbox.Errorf(sandbox.NotFound, "no sandbox has this ID or name").WithField("sandbox", ref).
		WithHint("`belljar ls --all` lists them")
}

// mustRun is running for commands that need a sandbox.
func (a *app) mustRun(ctx context.Context, ref string) (*client.Client, error) {
	c, err := a.running(ctx)
	if err == nil && c == nil {
		err = noSandbox(ref)
	}
	return c, err
}
