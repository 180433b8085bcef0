package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) lsCommand() *cobra.Command {
	var all, quiet bool
	var f *format
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"ps", "list"},
		Short:   "list sandboxes",
		Example: "  belljar ls\n  belljar ls --all -o json\n  belljar kill $(belljar ls -q)",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.list(cmd.Context(), all)
			switch {
			case err != nil:
				return err
			case f.machine():
				return encode(a.out, *f, list)
			case quiet:
				for _, s := range list {
					if _, err := fmt.Fprintln(a.out, s.ID); err != nil {
						return err
					}
				}
				return nil
			}
			return listTable(list, time.Now()).write(a.out)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those that are dead too, as long as they are remembered")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "IDs only")
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) list(ctx context.Context, all bool) ([]sandbox.Sandbox, error) {
	c, err := a.running(ctx)
	if err != nil || c == nil {
		return []sandbox.Sandbox{}, err
	}
	defer c.Close()
	list, err := c.List(ctx, all)
	if list == nil {
		list = []sandbox.Sandbox{}
	}
	return list, err
}

func listTable(list []sandbox.Sandbox, now time.Time) *table {
	t := newTable("ID", "NAME", "TEMPLATE", "BOUNDARY", "STATE", "AGE", "ENDS", "COMMAND", "EXIT")
	for _, s := range list {
		ends := ""
		switch {
		case s.State == sandbox.Dead:
			ends = s.EndReason
		case !s.EndsAt.IsZero():
			ends = "in " + age(s.EndsAt.Sub(now))
		}
		var exit *sandbox.Exit
		if s.Command != nil {
			exit = s.Command.Exit
		}
		t.add(string(s.ID), s.Name, s.Template, string(s.Isolation.Effective), string(s.State), age(now.Sub(s.CreatedAt)), ends,
			shownCommand(s.Command, maxShownCommand), shownExit(exit))
	}
	return t
}

// age prints a time span with its largest unit or two.
func age(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

func (a *app) inspectCommand() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:               "inspect SANDBOX...",
		Short:             "show what a sandbox was asked to be and what is in force",
		Long:              "Inspect shows the record of a sandbox, as JSON unless -o says otherwise: of one\nsandbox an object, of several a list of them.",
		Example:           "  belljar inspect work\n  belljar inspect work -o table",
		Args:              between(1, -1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			c, err := a.mustRun(cmd.Context(), refs[0])
			if err != nil {
				return err
			}
			defer c.Close()
			list := make([]sandbox.Sandbox, len(refs))
			for i, ref := range refs {
				if list[i], err = c.Get(cmd.Context(), ref); err != nil {
					return err
				}
			}
			return a.showRecords(list, *f)
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) showRecords(list []sandbox.Sandbox, f format) error {
	if f == formatDefault {
		f = formatJSON
	}
	switch {
	case f.machine() && len(list) == 1:
		return encode(a.out, f, list[0])
	case f.machine():
		return encode(a.out, f, list)
	}
	for i := range list {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		if err := inspectTable(a.out, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

func inspectTable(w io.Writer, s *sandbox.Sandbox) error {
	t := newTable()
	row := func(name, value string) {
		if value != "" {
			t.add(name, value)
		}
	}
	stamp := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return at.Format(time.RFC3339)
	}
	row("id", string(s.ID))
	row("name", s.Name)
	row("state", string(s.State))
	row("template", s.Template)
	row("boundary", isolation(s.Isolation))
	row("user", s.User)
	row("workdir", s.Workdir)
	row("hostname", s.Hostname)
	row("cpus seen inside", fmt.Sprint(s.CPUsSeen))
	row("created", stamp(s.CreatedAt))
	row("ends", stamp(s.EndsAt))
	row("on timeout", string(s.OnTimeout))
	row("generation", fmt.Sprint(s.Generation))
	if r := s.Restore; r != nil {
		row("restored", fmt.Sprintf("%s, generation %d", stamp(r.At), r.Generation))
		row("random bytes", string(r.Entropy))
		row("clock", fmt.Sprintf("%s, %v off", r.Clock, r.ClockOffset))
	}
	if s.State == sandbox.Paused {
		row("paused", stamp(s.PausedAt))
		row("image", fmt.Sprintf("%d bytes", s.ImageBytes))
	}
	row("ended", stamp(s.EndedAt))
	row("end reason", s.EndReason)
	row("end message", s.EndMessage)
	if s.Command != nil {
		row("command", shownCommand(s.Command, 0))
		row("process", s.Command.Process)
		row("exit", shownExit(s.Command.Exit))
		if x := s.Command.Exit; x != nil {
			row("exit reason", x.Reason)
			row("exited", stamp(x.At))
		}
	}
	if s.AutoRemove {
		row("auto-remove", "when the command has ended")
	}
	for _, m := range s.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		row("mount", fmt.Sprintf("%s at %s (%s)", m.Source, m.Target, mode))
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		row("label", k+"="+s.Labels[k])
	}
	if err := t.write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return limitTable(s.Limits).write(w)
}

func isolation(i sandbox.Isolation) string {
	if i.Effective == i.Requested {
		return string(i.Effective)
	}
	return fmt.Sprintf("%s instead of %s: %s", i.Effective, i.Requested, i.Reason)
}

func limitTable(limits []sandbox.LimitStatus) *table {
	t := newTable("LIMIT", "VALUE", "ENFORCED", "BY")
	for _, l := range limits {
		enforced, by := "yes", l.By
		if !l.Enforced {
			enforced, by = "no", l.Reason
		}
		if l.Seen != "" {
			by += " (seen inside: " + l.Seen + ")"
		}
		t.add(string(l.Name), l.Value, enforced, strings.TrimSpace(by))
	}
	return t
}
