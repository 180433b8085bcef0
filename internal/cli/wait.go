package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) waitCommand() *cobra.Command {
	var f *format
	var process string
	cmd := &cobra.Command{
		Use:   "wait SANDBOX...",
		Short: "wait for the command of a sandbox and print its exit code",
		Long: `Wait blocks until the command that each sandbox was made with has ended, and
prints its exit code: the command's own, 124 when its time was over, 137 when it
was killed, as it is with its sandbox. A sandbox that was made without a command
is waited for until it is dead. The exit code of wait itself is 0.`,
		Example:           "  belljar wait $(belljar run -d --rm -- make test)\n  belljar wait work --process $(belljar exec -d work -- make test)",
		Args:              between(1, -1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			if process != "" && len(refs) > 1 {
				return usagef("wait for one after the other", "--process is of one sandbox, %d are named", len(refs))
			}
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err := a.wait(ctx, refs, process, *f)
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().StringVar(&process, "process", "", "ID of a process to wait for, as exec -d prints it")
	f = a.formatFlag(cmd)
	return cmd
}

// waited is one line of wait.
type waited struct {
	Sandbox   sandbox.ID   `json:"sandbox"`
	Name      string       `json:"name,omitempty"`
	Process   string       `json:"process,omitempty"`
	Status    int          `json:"status"`
	Exit      sandbox.Exit `json:"exit"`
	EndReason string       `json:"end_reason,omitempty"` // of the sandbox, when it is dead
}

func (a *app) wait(ctx context.Context, refs []string, process string, f format) error {
	c, err := a.mustRun(ctx, refs[0])
	if err != nil {
		return err
	}
	defer c.Close()
	out := []waited{}
	for _, ref := range refs {
		w, err := waitOne(ctx, c, ref, process)
		if err != nil {
			return err
		}
		out = append(out, w)
		if f == formatDefault {
			if _, err := fmt.Fprintln(a.out, w.Status); err != nil {
				return err
			}
		}
	}
	switch {
	case f.machine():
		return encode(a.out, f, out)
	case f == formatTable:
		t := newTable("SANDBOX", "NAME", "EXIT")
		for _, w := range out {
			t.add(string(w.Sandbox), w.Name, shownExit(&w.Exit))
		}
		return t.write(a.out)
	}
	return nil
}

func waitOne(ctx context.Context, c *client.Client, ref, process string) (w waited, err error) {
	var sb sandbox.Sandbox
	if process != "" {
		if sb, err = c.Get(ctx, ref); err == nil {
			var p client.Process
			if p, err = c.WaitProcess(ctx, ref, process); err == nil {
				w.Exit = *p.Exit
			}
		}
	} else if sb, err = c.WaitCommand(ctx, ref); err == nil {
		w.Exit = sandbox.EndedWith(sb.EndReason, sb.EndMessage, sb.EndedAt)
		if sb.Command != nil && sb.Command.Exit != nil {
			process, w.Exit = sb.Command.Process, *sb.Command.Exit
		}
	}
	w.Sandbox, w.Name, w.Process, w.EndReason = sb.ID, sb.Name, process, sb.EndReason
	w.Status = exitCode(w.Exit)
	return w, err
}

// exitCode is the code of a command that has ended, as run and exec give it,
// but 137 where the sandbox has ended under it.
func exitCode(x sandbox.Exit) int {
	switch {
	case x.OOM:
		return exitKilled
	case x.TimedOut:
		return exitTimeout
	}
	return x.Status()
}

// shownExit tells in a word or two how a command has ended; "" while it runs.
func shownExit(x *sandbox.Exit) string {
	switch {
	case x == nil:
		return ""
	case x.OOM:
		return fmt.Sprintf("%d (oom)", exitKilled)
	case x.TimedOut:
		return fmt.Sprintf("%d (timeout)", exitTimeout)
	}
	if end, _ := x.EndOf(); end != "" {
		return fmt.Sprintf("%d (sandbox %s)", x.Status(), end)
	}
	if x.Signal != 0 {
		return fmt.Sprintf("%d (signal %d)", x.Status(), x.Signal)
	}
	return fmt.Sprint(x.Code)
}

// maxShownCommand is how much of a command a list shows, in characters.
const maxShownCommand = 24

// shownCommand is the first command of a sandbox on one line.
func shownCommand(c *sandbox.Command, most int) string {
	if c == nil {
		return ""
	}
	words := make([]string, len(c.Argv))
	for i, w := range c.Argv {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = w
	}
	line := []rune(strings.Join(words, " "))
	if most > 0 && len(line) > most {
		line = append(line[:most-1], '…')
	}
	return string(line)
}
