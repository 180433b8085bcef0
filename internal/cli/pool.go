package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) poolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "keep sandboxes ready before anybody asks for them",
		Long: `A pool keeps sandboxes of a template ready, so that create, and run -d, take
milliseconds. One that is ready has its guest at work, which waits to be told who
it is. One that is booted has a kernel and has run nothing: a resume takes it, and
a create when none is ready.

A pool serves those who ask for its template, with just its limits and without a
mounted directory; everybody else is served as without one, and the record of a
sandbox says as origin which it was: ready, booted or cold. What was claimed never
returns to a pool.

A daemon that keeps a pool does not end by being idle.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.poolSet(), a.poolLs(), a.poolRm())
	return cmd
}

func (a *app) poolSet() *cobra.Command {
	var s sandbox.PoolSpec
	var limits limitFlags
	var f *format
	cmd := &cobra.Command{
		Use:   "set TEMPLATE",
		Short: "set the size of a pool",
		Long: `Set has this many sandboxes of a template kept ready, and returns at once: they
are made in the background and give way to other work. A template has one pool for
each set of limits. The size is remembered; one for which this machine has not the
memory is refused.

When requests find nothing, more are kept for a while, up to --max.`,
		Example:           "  belljar pool set host --ready 4\n  belljar pool set debian --ready 2 --booted 2 --max 10 --memory 512M",
		Args:              between(1, 1),
		ValidArgsFunction: a.completeTemplates,
		RunE: func(cmd *cobra.Command, argv []string) (err error) {
			s.Template = argv[0]
			if s.Limits, err = limits.values(cmd); err != nil {
				return err
			}
			if err := s.Validate(); err != nil {
				return err
			}
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			p, err := c.SetPool(cmd.Context(), s)
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, p)
			}
			_, err = fmt.Fprintf(a.out, "%s: %d ready, %d booted, up to %d\n", p.Template, p.Ready, p.Booted, p.Ceiling)
			return err
		},
	}
	cmd.Flags().IntVar(&s.Ready, "ready", 0, "sandboxes whose guest waits to be told who it is")
	cmd.Flags().IntVar(&s.Booted, "booted", 0, "sandboxes whose kernel has booted and has run nothing")
	cmd.Flags().IntVar(&s.Ceiling, "max", 0, "how many of both there may be when demand asks for more (default twice as many)")
	limits.add(cmd.Flags())
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) poolLs() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list pools and where they stand",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.daemon(cmd.Context()) // which remembers them, and fills them again
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.Pools(cmd.Context())
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, list)
			}
			t := newTable("TEMPLATE", "LIMITS", "READY", "BOOTED", "TARGET", "MAX", "HITS", "MISSES", "MEMORY", "REASON")
			for _, p := range list {
				t.add(p.Template, limitsText(p.Limits),
					fmt.Sprintf("%d/%d", p.ReadyNow, p.Ready), fmt.Sprintf("%d/%d", p.BootedNow, p.Booted),
					strconv.Itoa(p.Target), strconv.Itoa(p.Ceiling), strconv.FormatInt(p.Hits, 10), strconv.FormatInt(p.Misses, 10),
					formatSize(p.MemoryBytes), p.Reason)
			}
			return t.write(a.out)
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

// limitsText tells limits in the words of their flags.
func limitsText(l sandbox.Limits) string {
	var out []string
	if l.CPUs != 0 {
		out = append(out, "cpus="+strconv.FormatFloat(l.CPUs, 'g', -1, 64))
	}
	for _, s := range []struct {
		name  string
		value int64
		size  bool
	}{
		{"memory", l.MemoryBytes, true}, {"pids", l.Processes, false}, {"disk", l.DiskBytes, true},
		{"open-files", l.OpenFiles, false}, {"output-limit", l.OutputBytes, true},
	} {
		switch {
		case s.value == 0:
		case s.size:
			out = append(out, s.name+"="+formatSize(s.value))
		default:
			out = append(out, s.name+"="+strconv.FormatInt(s.value, 10))
		}
	}
	if len(out) == 0 {
		return "default"
	}
	return strings.Join(out, ",")
}

func (a *app) poolRm() *cobra.Command {
	return &cobra.Command{
		Use:     "rm TEMPLATE...",
		Aliases: []string{"remove"},
		Short:   "take pools away",
		Long:    "Rm takes the pools of templates away, whatever their limits, and returns when\nnothing of them is left. Sandboxes that were claimed go on.",
		Args:    between(1, -1),
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			var failed error
			for _, n := range names {
				if err := c.RemovePool(cmd.Context(), n); err != nil {
					failed = exitStatus(a.report(err))
					continue
				}
				if _, err := fmt.Fprintln(a.out, n); err != nil {
					return err
				}
			}
			return failed
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			c, err := a.runningDaemon(cmd.Context())
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			defer c.Close()
			var out []string
			list, _ := c.Pools(cmd.Context()) // nothing to offer is no error
			for _, p := range list {
				out = append(out, p.Template)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// completeTemplates offers the names of templates.
func (a *app) completeTemplates(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if s, err := a.templates(); err == nil && len(args) == 0 {
		list, _ := s.List(cmd.Context()) // nothing to offer is no error
		for _, e := range list {
			out = append(out, e.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
