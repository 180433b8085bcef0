package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, raw bool
	var process string
	cmd := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "print what detached commands have written",
		Long: `Logs prints what the detached commands of a sandbox have written: standard
output to standard output, standard error to standard error. On a terminal
control characters are shown as escapes; a pipe or file gets the bytes as they
are.`,
		Example:           "  belljar logs work\n  belljar logs -f work",
		Args:              between(1, 1),
		ValidArgsFunction: a.firstSandbox,
		RunE: func(cmd *cobra.Command, refs []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err := a.logs(ctx, refs[0], process, follow, raw)
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on while the command runs")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the bytes as they are on a terminal too")
	cmd.Flags().StringVar(&process, "process", "", "ID of one process (default: all, in the order of their start)")
	return cmd
}

func (a *app) logs(ctx context.Context, ref, process string, follow, raw bool) error {
	c, err := a.mustRun(ctx, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	o, err := c.Logs(ctx, ref, process, follow)
	if err != nil {
		return err
	}
	defer o.Close()
	stdout, stderr := io.Writer(a.out), io.Writer(a.err)
	if !raw && terminal.IsTerminal(a.out) {
		w := terminal.NewEscapeWriter(a.out)
		defer w.Close()
		stdout = w
	}
	if !raw && terminal.IsTerminal(a.err) {
		w := terminal.NewEscapeWriter(a.err)
		defer w.Close()
		stderr = w
	}
	return a.copyLogs(o, stdout, stderr)
}

func (a *app) copyLogs(o *client.Logs, stdout, stderr io.Writer) error {
	for {
		c, err := o.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch c.Kind {
		case client.ChunkGap:
			a.warn("%s of %s was not kept", formatSize(c.Lost), streamName(c.Stream))
		case client.ChunkData:
			w := stdout
			if c.Stream == client.Stderr {
				w = stderr
			}
			if _, err := w.Write(c.Data); err != nil {
				return err
			}
		case client.ChunkExit:
			a.tellExit(c.Exit)
		}
	}
}

// tellExit mentions an end that was not the command's own.
func (a *app) tellExit(e sandbox.Exit) {
	switch {
	case e.OOM:
		a.warn("the command was ended by the memory limit")
	case e.TimedOut:
		a.warn("the command was ended because its time was over")
	case e.Signal != 0:
		a.warn("the command was ended by signal %d", e.Signal)
	}
}

func streamName(s client.StreamID) string {
	if s == client.Stderr {
		return "standard error"
	}
	return "standard output"
}
