package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/internal/startbench"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "measure what Belljar does on this machine",
		Example: "  belljar bench start",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.benchStart())
	return cmd
}

func (a *app) benchStart() *cobra.Command {
	o := startbench.Options{Template: sandbox.DefaultTemplate, Rounds: 20}
	var plot string
	var f *format
	cmd := &cobra.Command{
		Use:   "start",
		Short: "measure how long a sandbox takes to start",
		Long: `Start measures how long it takes to the end of "echo hi" in a sandbox: started
cold, claimed from a pool, resumed, started from a snapshot, forked; and beside it
with bwrap, runc and runsc, where these are installed. Each round measures all of
them once.

It works in an installation of its own, which shares nothing with that of the user
and is removed in the end. Nothing is downloaded. On two cores a round takes three
to five seconds.`,
		Example: "  belljar bench start\n  belljar bench start --rounds 50 --plot start.svg\n  belljar bench start -o json",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds < 1 || o.Rounds > startbench.MaxRounds {
				return usagef("20 are enough for a median, 100 for a 99th percentile", "--rounds %d: there are between 1 and %d", o.Rounds, startbench.MaxRounds)
			}
			if err := checkPlot(plot); err != nil {
				return err
			}
			r, err := a.bench(cmd, o)
			if err != nil {
				return err
			}
			if plot != "" {
				var b bytes.Buffer
				if err := r.WritePlot(&b); err != nil {
					return err
				}
				if err := writeWhole(plot, &b); err != nil {
					return err
				}
			}
			if f.machine() {
				return encode(a.out, *f, r)
			}
			return printStarts(a.out, r)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "how often each start is measured")
	cmd.Flags().StringVar(&o.Template, "template", o.Template, "what the sandboxes start from")
	cmd.Flags().StringVar(&plot, "plot", "", "file for a drawing of the result, as SVG")
	cmd.RegisterFlagCompletionFunc("template", a.completeTemplates)
	f = a.formatFlag(cmd)
	return cmd
}

// checkPlot refuses a file that could not be written in the end.
func checkPlot(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(dirOf(path))
	if err != nil {
		return sandbox.Errorf(sandbox.NotFound, "the plot cannot be written there: %w", pathCause(err)).WithField("plot", path)
	}
	target, terr := os.Stat(path)
	if !info.IsDir() || terr == nil && target.IsDir() {
		return sandbox.Errorf(sandbox.Invalid, "the plot is written to a file, in a directory that is there").WithField("plot", path)
	}
	return nil
}

// bench measures; a signal ends it and it cleans up.
func (a *app) bench(cmd *cobra.Command, o startbench.Options) (*startbench.Report, error) {
	ctx, relay := newRelay(cmd.Context())
	defer relay.stop()
	var err error
	if o.Dirs, err = userDirs(); err != nil {
		return nil, err
	}
	if o.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	o.Machine = host.Probe(ctx, host.Options{Build: build.ID(), StateDir: o.Dirs.State}).System
	progress := a.longProgress("measuring")
	o.Progress = progress.set
	r, err := startbench.Run(ctx, o)
	progress.end()
	if status, ok := interrupted(ctx); ok {
		return nil, status
	}
	return r, err
}

func printStarts(w io.Writer, r *startbench.Report) error {
	m := r.Machine
	fmt.Fprintf(w, "Linux %s, %s, %d CPUs, %s of memory, build %s; template %s, %d rounds, milliseconds\n\n",
		m.Kernel, m.Architecture, m.CPUs, formatSize(m.MemoryBytes), m.Build, r.Template, r.Rounds)
	head := []string{"START", "MEDIAN", "P99", "MIN"}
	if r.Reference != "" {
		head = append(head, "/ "+r.Reference)
	}
	t := newTable(append(head, "WHAT")...)
	for _, s := range r.Starts {
		cells := []string{s.Name, millis(s.Median), millis(s.P99), millis(s.Least)}
		if r.Reference != "" {
			cells = append(cells, strconv.FormatFloat(s.Ratio, 'f', 2, 64))
		}
		t.add(append(cells, s.What)...)
	}
	if err := t.write(w); err != nil {
		return err
	}
	if len(r.Missing) > 0 {
		fmt.Fprintln(w)
	}
	for _, m := range r.Missing {
		if _, err := fmt.Fprintf(w, "not measured: %s: %s\n", m.Name, terminal.Escape(m.Reason)); err != nil {
			return err
		}
	}
	return nil
}

func millis(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
