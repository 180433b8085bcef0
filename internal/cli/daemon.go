package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/daemon"
	"github.com/belljar-sh/belljar/internal/daemon/keepers"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/internal/template/holding"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) daemonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "the user's daemon, which keeps sandboxes beyond one command",
		Long: `The daemon of a user is started when a command needs it and ends by itself when
it is idle and has no sandbox. Its sandboxes outlive it: the next daemon adopts
them.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.daemonStatus(), a.daemonStop(), a.daemonRun())
	return cmd
}

// daemonState is what daemon status prints.
type daemonState struct {
	Running bool `json:"running"`
	*client.Info
	Stale string `json:"stale,omitempty"` // why this program cannot use it
}

func (a *app) daemonStatus() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "tell whether a daemon runs",
		Long:  "Status tells whether a daemon of this user runs. The exit code is 0 when one does\nand 1 when none does.",
		Args:  between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.daemonState(cmd)
			if err != nil {
				return err
			}
			if f.machine() {
				err = encode(a.out, *f, s)
			} else {
				err = a.printDaemon(s)
			}
			if err == nil && !s.Running {
				err = exitStatus(1)
			}
			return err
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) daemonState(cmd *cobra.Command) (daemonState, error) {
	c, err := client.Dial(cmd.Context(), client.Options{NoStart: true}) // of any build
	if sandbox.KindOf(err) == sandbox.Unavailable {
		return daemonState{}, nil
	}
	if err != nil {
		return daemonState{}, err
	}
	defer c.Close()
	info, err := c.Info(cmd.Context())
	if err != nil {
		return daemonState{}, err
	}
	s := daemonState{Running: true, Info: &info}
	if info.Build != build.ID() {
		s.Stale = fmt.Sprintf("it is build %s, this program is %s: belljar daemon stop", info.Build, build.ID())
	}
	return s, nil
}

func (a *app) printDaemon(s daemonState) error {
	if !s.Running {
		_, err := fmt.Fprintln(a.out, "no daemon runs; one is started when a command needs it")
		return err
	}
	t := newTable()
	t.add("daemon", "running")
	t.add("pid", fmt.Sprint(s.PID))
	t.add("build", s.Build)
	t.add("up", age(time.Since(s.StartedAt)))
	t.add("sandboxes", fmt.Sprint(s.Live))
	t.add("state", s.StateDir)
	t.add("runtime", s.RuntimeDir)
	if s.Stale != "" {
		t.add("stale", s.Stale)
	}
	return t.write(a.out)
}

func (a *app) daemonStop() *cobra.Command {
	var kill bool
	cmd := &cobra.Command{
		Use:     "stop",
		Short:   "end the daemon",
		Long:    "Stop ends the daemon. Its sandboxes go on and the next daemon adopts them; with\n--kill they are killed first.",
		Example: "  belljar daemon stop --kill",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Dial(cmd.Context(), client.Options{NoStart: true})
			if sandbox.KindOf(err) == sandbox.Unavailable {
				_, err = fmt.Fprintln(a.out, "no daemon runs")
				return err
			}
			if err != nil {
				return err
			}
			defer c.Close()
			p := a.progress("stopping the daemon")
			err = c.Stop(cmd.Context(), kill)
			p.end()
			return err
		},
	}
	cmd.Flags().BoolVar(&kill, "kill", false, "kill its sandboxes first")
	return cmd
}

// daemonRun is the daemon itself: it is started by whoever needs one.
func (a *app) daemonRun() *cobra.Command {
	var grace time.Duration
	var crashPoints bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "be the daemon",
		Long:  "Run is the daemon, in the foreground. Commands that need one start it by\nthemselves.",
		Args:  between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			signal.Ignore(syscall.SIGHUP)
			return a.serve(ctx, grace, crashPoints)
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "end when idle and empty for so long (default 5m)")
	cmd.Flags().BoolVar(&crashPoints, "crash-points", false, "for tests: die at the point that BELLJAR_CRASH names")
	cmd.Flags().MarkHidden("crash-points")
	return cmd
}

func (a *app) serve(ctx context.Context, grace time.Duration, crashPoints bool) error {
	dirs, err := userDirs()
	if err != nil {
		return err
	}
	guest, err := guestPath()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.err, nil))
	store := template.New(dirs.Templates(), template.Options{})
	pool := keepers.New(keepers.Options{
		Dir: dirs.Keepers(), Log: log,
		Launcher: launcher{launch.Options{RuntimeDir: dirs.Runtime, Kind: "daemon"}},
	})
	return daemon.Run(ctx, daemon.Options{
		Dirs: dirs, Keepers: holding.Keepers(pool, store, dirs.Keepers()), Templates: holding.Templates(store), Boundaries: boundaries,
		Guest: guest, Version: build.Version, Build: build.ID(), Grace: grace, Log: log, CrashPoints: crashPoints,
	})
}
