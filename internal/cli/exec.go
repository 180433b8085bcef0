package cli

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// execFlags are the flags of exec.
type execFlags struct {
	interactive, tty, detach bool
	user, workdir            string
	env, envFiles            []string
	timeout                  span
	outputLimit              byteSize
	format                   *format
}

func (a *app) execCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] CMD [ARG...]",
		Short: "run a command in a sandbox",
		Long: `Exec runs a command in a sandbox, passes its streams and exit code through and,
when it has exited or its time is over, kills what it has left behind. A command
that is started with -d goes on by itself: see belljar logs. When belljar exec is
killed and cannot tell the command, it is killed with all that it has started
45 seconds later.`,
		Example:           "  belljar exec work -- make test\n  belljar exec -it work bash\n  belljar exec -u root --timeout 30s work -- id",
		Args:              between(2, -1),
		ValidArgsFunction: a.firstSandbox,
		RunE: func(cmd *cobra.Command, argv []string) error {
			ref, argv := argv[0], argv[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usagef("usage: "+cmd.UseLine(), "belljar exec: name a command")
			}
			return a.exec(cmd.Context(), &f, ref, argv)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(&f.detach, "detach", "d", false, "print the process's ID and do not wait")
	fl.StringVarP(&f.user, "user", "u", "", "user inside (default: the sandbox's)")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "directory in which it starts (default: the sandbox's)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment: KEY=VALUE, or KEY to pass on yours")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "file with one KEY=VALUE per line")
	fl.Var(&f.timeout, "timeout", "time after which the command is killed: 90, 90s, 5m")
	fl.Var(&f.outputLimit, "output-limit", "output inside a result of -o json, per stream (default 64KiB)")
	f.format = a.formatFlag(cmd)
	return cmd
}

// check refuses flags that do not go together.
func (a *app) checkStreams(interactive, tty, detach bool, f format) error {
	switch {
	case detach && (interactive || tty):
		return usagef("leave out -d, or -i and -t", "-d does not go with -i or -t: nobody is there to type")
	case tty && f.machine():
		return usagef("leave out -t", "-o %s does not go with -t: a terminal is for people", f)
	}
	return a.checkTTY(tty)
}

func (a *app) exec(ctx context.Context, f *execFlags, ref string, argv []string) error {
	if err := a.checkStreams(f.interactive, f.tty, f.detach, *f.format); err != nil {
		return err
	}
	env, err := environment(f.env, f.envFiles, os.LookupEnv)
	if err != nil {
		return err
	}
	if err := checkText(argv, env); err != nil {
		return err
	}
	asked := sandbox.Spec{Env: env, Workdir: f.workdir, User: f.user, Timeout: time.Duration(f.timeout)}
	if err := checkSpec(&asked, nil); err != nil {
		return err
	}
	ctx, r := newRelay(ctx)
	defer r.stop()
	c, err := a.mustRun(ctx, ref)
	if err != nil {
		return a.finish(ctx, sandbox.Exit{}, err, 0, 0)
	}
	defer c.Close()
	if f.detach {
		return a.execDetached(ctx, c, f, ref, argv, env)
	}
	return a.execAttached(ctx, c, f, ref, argv, env, r)
}

func (a *app) execDetached(ctx context.Context, c *client.Client, f *execFlags, ref string, argv []string, env map[string]string) error {
	p, err := c.Start(ctx, ref, client.Start{
		Argv: argv, Env: env, Cwd: f.workdir, User: f.user, Timeout: time.Duration(f.timeout), Capture: true, Keep: true,
	})
	switch {
	case err != nil:
		return a.startFailure(a.finish(ctx, sandbox.Exit{}, err, 0, 0))
	case f.format.machine():
		return encode(a.out, *f.format, p)
	}
	_, err = a.out.WriteString(p.ID + "\n")
	return err
}

func (a *app) execAttached(ctx context.Context, c *client.Client, f *execFlags, ref string, argv []string, env map[string]string, r *relay) error {
	at := a.attach(r, f.interactive, f.tty)
	defer at.end()
	if f.format.machine() {
		at.captureOutput(f.outputLimit.n)
	}
	sent := time.Now()
	var ran time.Time
	exit, err := c.Exec(ctx, ref, client.ExecOptions{
		Streams: at.streams(), Argv: argv, Env: env, Cwd: f.workdir, User: f.user,
		TTY: f.tty, Size: at.size(), Timeout: time.Duration(f.timeout),
		Started: func(client.Process) { ran = time.Now(); at.begin() },
	})
	ended := time.Now()
	at.end()
	if err == nil && ran.IsZero() { // it ended before the command could begin
		reason := exit.Reason
		if end := sandboxEnd(exit); end != "" {
			reason = end
		}
		err = sandbox.Errorf(sandbox.Conflict, "%s", reason).WithField("sandbox", ref).WithHint("make another with belljar create")
	}
	if err != nil {
		return a.finish(ctx, exit, a.startFailure(err), 0, 0)
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if exit.Signal == int(syscall.SIGKILL) {
		blameMemory(&exit, oomKills(after, c, ref))
	}
	if f.format.machine() {
		err = a.execResult(after, c, f, ref, argv, at, exit, [3]time.Time{sent, ran, ended})
	}
	memory := int64(0)
	if exit.OOM {
		memory = memoryLimit(after, c, ref)
	}
	return a.finish(ctx, exit, err, memory, time.Duration(f.timeout))
}

// execResult prints the result object.
func (a *app) execResult(ctx context.Context, c *client.Client, f *execFlags, ref string, argv []string, at *attachment, exit sandbox.Exit, times [3]time.Time) error {
	s, err := c.Get(ctx, ref)
	if err != nil {
		return err
	}
	res := newResult(&s, argv, exit, at)
	res.Timeline = nil // that of the create
	now := time.Now()
	res.Timing = timing{
		CLI: ms(times[0].Sub(a.began)), Guest: ms(times[1].Sub(times[0])), Exec: ms(times[2].Sub(times[1])),
		End: ms(now.Sub(times[2])), Total: ms(now.Sub(a.began)),
	}
	return encode(a.out, *f.format, res)
}

// cleanTime bounds the clean-up after a command.
const cleanTime = 30 * time.Second

// memoryLimit asks for the limit of a sandbox; 0 when it cannot be told.
func memoryLimit(ctx context.Context, c *client.Client, ref string) int64 {
	s, err := c.Get(ctx, ref)
	if err != nil {
		return 0
	}
	return limitOf(&s)
}

func limitOf(s *sandbox.Sandbox) int64 {
	for _, l := range s.Limits {
		if l.Name == sandbox.LimitMemory {
			if n, err := parseSize(l.Value); err == nil {
				return n
			}
		}
	}
	return 0
}

// captureOutput keeps the output for a result instead of printing it.
func (at *attachment) captureOutput(limit int64) {
	at.stdout = newCapture("belljar-stdout-*", limit)
	at.stderr = newCapture("belljar-stderr-*", limit)
}

func newResult(s *sandbox.Sandbox, argv []string, exit sandbox.Exit, at *attachment) *result {
	at.stdout.lost, at.stderr.lost = at.lost[client.Stdout], at.lost[client.Stderr]
	status := exit.Status()
	switch end := sandboxEnd(exit); {
	case exit.OOM:
		status = exitKilled
	case exit.TimedOut:
		status = exitTimeout
	case end != "":
		status, exit.Reason = exitFailure, end
	}
	return &result{
		Sandbox: s.ID, Name: s.Name, Template: s.Template, Argv: argv,
		Exit: exitResult{Status: status, Exit: exit}, Isolation: s.Isolation,
		Limits: s.Limits, CPUsSeen: s.CPUsSeen, Timeline: s.Timeline,
		Stdout: at.stdout.result(), Stderr: at.stderr.result(),
	}
}
