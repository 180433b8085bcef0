package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) pauseCommand() *cobra.Command {
	var memory bool
	cmd := &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "write sandboxes to disk and give back their memory and processes",
		Long: `Pause writes memory and files of sandboxes to disk and gives back everything
else that they hold of this machine. Their processes go on where they were when
the sandbox is resumed: by belljar resume, or by the next exec, cp or input.
Streams of output, and waits, wait with the sandbox. Its timeout stands still. A
sandbox that is paused already is no error.

With --memory=false only files are kept, which takes less time and space: all
processes end now, and the sandbox boots anew with its files when it is resumed.`,
		Example:           "  belljar pause work\n  belljar pause --memory=false work\n  belljar create --timeout 10m --on-timeout pause",
		Args:              between(1, -1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			pause := (*client.Client).Pause
			if !memory {
				pause = (*client.Client).PauseFiles
			}
			return a.toState(cmd.Context(), refs, sandbox.Paused, "pausing", pause)
		},
	}
	cmd.Flags().BoolVar(&memory, "memory", true, "keep memory and processes; else files alone")
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	var verify string
	cmd := &cobra.Command{
		Use:     "resume SANDBOX...",
		Aliases: []string{"unpause"},
		Short:   "have paused sandboxes go on where they were",
		Long: `Resume has paused sandboxes go on where they were, with the same processes, files
and time left. A sandbox that runs already is no error. When it fails the sandbox
stays paused. Before it the image is looked at: with --verify=full every byte of
it, else all but the pages of memory. One that was paused with --memory=false boots
anew with its files.`,
		Example:           "  belljar resume work\n  belljar resume --verify=full work",
		Args:              between(1, -1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			act := (*client.Client).Resume
			switch verify {
			case "", "quick":
			case "full":
				act = (*client.Client).ResumeVerified
			default:
				return usagef("choose quick or full", "--verify %q: there is no such way to verify", verify)
			}
			return a.toState(cmd.Context(), refs, sandbox.Running, "resuming", act)
		},
	}
	cmd.Flags().StringVar(&verify, "verify", "", "what is looked at of the image: quick (default) or full")
	return cmd
}

// toState has each sandbox taken to a state and prints what it was called by.
func (a *app) toState(ctx context.Context, refs []string, to sandbox.State, doing string,
	act func(*client.Client, context.Context, string) (sandbox.Sandbox, error)) error {
	c, err := a.mustRun(ctx, refs[0])
	if err != nil {
		return err
	}
	defer c.Close()
	var failed error
	for _, ref := range refs {
		before, err := c.Get(ctx, ref)
		if err == nil {
			progress := a.progress(doing + " " + ref)
			_, err = act(c, ctx, ref)
			progress.end()
		}
		if err != nil {
			failed = exitStatus(a.report(err))
			continue
		}
		if before.State == to {
			a.warn("the sandbox %s is %s already", ref, to)
		}
		if _, err := fmt.Fprintln(a.out, ref); err != nil {
			return err
		}
	}
	return failed
}
