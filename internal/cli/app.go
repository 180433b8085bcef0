package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
)

// app is one run of the command line.
type app struct {
	in, out, err *os.File
	began        time.Time
	format       format // of results, and so of errors and warnings
}

// Main runs the command line args (without the program's name) and returns
// the exit code. It takes over the process's signals.
func Main(ctx context.Context, began time.Time, args []string, in, out, stderr *os.File) int {
	a := &app{in: in, out: out, err: stderr, began: began}
	// With a handler a write to a closed pipe is an error that ends the command
	// in order; without one it would kill us with a sandbox still running.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	root := a.root(args)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, syscall.EPIPE) {
		return exitPipe
	}
	if a.format == formatDefault && errors.As(err, new(*usageError)) {
		a.format = formatOf(args) // parsing may have ended before it came to it
	}
	return a.report(err)
}

const rootLong = `Belljar runs AI agents, and the code that they write, in sandboxes with a
kernel of their own.

  belljar run -- python3 -c 'print(6*7)'     one command in a fresh sandbox
  belljar create --name work                 a sandbox that stays
  belljar exec work -- make test             a command in it
  belljar kill work                          the end of it`

// subcommand is one command below the root. Building all of them costs as much
// as starting the process, so only the one that is asked for is built.
type subcommand struct {
	group string
	names []string // its name, then its aliases
	build func() *cobra.Command
}

func (a *app) subcommands() []subcommand {
	return []subcommand{
		{"use", []string{"run"}, a.runCommand},
		{"use", []string{"create"}, a.createCommand},
		{"use", []string{"exec"}, a.execCommand},
		{"use", []string{"cp"}, a.cpCommand},
		{"use", []string{"ls", "ps", "list"}, a.lsCommand},
		{"use", []string{"logs"}, a.logsCommand},
		{"use", []string{"wait"}, a.waitCommand},
		{"use", []string{"inspect"}, a.inspectCommand},
		{"use", []string{"stats"}, a.statsCommand},
		{"use", []string{"pause"}, a.pauseCommand},
		{"use", []string{"resume", "unpause"}, a.resumeCommand},
		{"use", []string{"fork"}, a.forkCommand},
		{"use", []string{"snapshot"}, a.snapshotCommand},
		{"use", []string{"apply"}, a.applyCommand},
		{"use", []string{"diff"}, a.diffCommand},
		{"use", []string{"kill", "rm"}, a.killCommand},
		{"template", []string{"template"}, a.templateCommand},
		{"template", []string{"pool"}, a.poolCommand},
		{"machine", []string{"doctor"}, a.doctorCommand},
		{"machine", []string{"bench"}, a.benchCommand},
		{"machine", []string{"system"}, a.systemCommand},
		{"machine", []string{"daemon"}, a.daemonCommand},
		{"machine", []string{"version"}, a.versionCommand},
		{"machine", []string{"completion"}, a.completionCommand},
	}
}

// wanted returns the subcommand that args name, or all when it is not plain
// which one it is: for help, completion and mistakes.
func wanted(all []subcommand, args []string) []subcommand {
	if len(args) == 0 {
		return all
	}
	i := slices.IndexFunc(all, func(s subcommand) bool { return slices.Contains(s.names, args[0]) })
	if i < 0 {
		return all
	}
	return all[i : i+1]
}

// root builds the command line for args; nil builds all of it.
func (a *app) root(args []string) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:                        "belljar",
		Short:                      "run code that nobody vouches for",
		Long:                       rootLong,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case version && len(args) == 0:
				return a.printVersion()
			case len(args) == 0:
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.Flags().BoolVarP(&version, "version", "v", false, "print the version")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(&cobra.Group{ID: "use", Title: "Sandboxes:"},
		&cobra.Group{ID: "template", Title: "What they start from:"},
		&cobra.Group{ID: "machine", Title: "This machine:"})
	for _, s := range wanted(a.subcommands(), args) {
		c := s.build()
		c.GroupID = s.group
		root.AddCommand(c)
	}
	root.SetHelpCommandGroupID("machine")
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short, c.Example = "tell about a command", "  belljar help run"
		}
	}
	return root
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := fmt.Sprintf("`%s --help` lists the commands", cmd.CommandPath())
	if h := habit(name); h != "" && cmd == cmd.Root() {
		hint = h
	} else if s := cmd.SuggestionsFor(name); len(s) > 0 {
		hint = "did you mean `" + cmd.CommandPath() + " " + strings.Join(s, "` or `") + "`?"
	}
	return usagef(hint, "unknown command %q for %q", name, cmd.CommandPath())
}

func flagError(cmd *cobra.Command, err error) error {
	hint := fmt.Sprintf("see `%s --help`", cmd.CommandPath())
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedName()
		if h := flagHabit(name); h != "" && (cmd.Name() == "run" || cmd.Name() == "create") {
			hint = h
		} else if near := nearFlag(cmd, name); near != "" {
			hint = "did you mean --" + near + "? " + hint
		}
	}
	return &usageError{err: err, hint: hint}
}

// nearFlag returns the name of the flag that is most like name, "" when none
// is near.
func nearFlag(cmd *cobra.Command, name string) string {
	best, least := "", 3
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := distance(f.Name, name); d < least && d < len(name) {
			best, least = f.Name, d
		}
	})
	return best
}

// distance counts the insertions, deletions and replacements between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// daemon returns a client of the user's daemon, which is started if need be.
func (a *app) daemon(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{Build: build.ID()})
}

// runningDaemon is daemon without starting one.
func (a *app) runningDaemon(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{Build: build.ID(), NoStart: true})
}

// formatFlag adds -o to cmd.
func (a *app) formatFlag(cmd *cobra.Command) *format {
	f := &a.format // one command runs
	cmd.Flags().VarP(f, "output", "o", "how to print the result, and errors: json, yaml or table")
	cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"json", "yaml", "table"}, cobra.ShellCompDirectiveNoFileComp
	})
	return f
}

// formatOf looks for -o in a command line that could not be parsed.
func formatOf(args []string) (f format) {
	for i, a := range args {
		if a == "--" {
			break
		}
		value, ok := strings.CutPrefix(a, "--output=")
		if !ok && !strings.HasPrefix(a, "--") {
			value, ok = strings.CutPrefix(a, "-o")
			value = strings.TrimPrefix(value, "=")
		}
		if (a == "-o" || a == "--output") && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if ok && f.Set(value) == nil {
			break
		}
	}
	return f
}

// completeSandboxes offers the names of the sandboxes that live, when a daemon
// runs.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.runningDaemon(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	list, err := c.List(cmd.Context(), false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, s := range list {
		if s.Name != "" {
			out = append(out, s.Name)
		} else {
			out = append(out, string(s.ID))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// firstSandbox completes the first argument only.
func (a *app) firstSandbox(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeSandboxes(cmd, args, to)
}
