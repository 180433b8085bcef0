package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// runFlags are the flags of run beside those of the sandbox.
type runFlags struct {
	specFlags
	interactive, tty, detach, rm bool
	timing                       bool
	format                       *format
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG...]",
		Short: "run one command in a fresh sandbox",
		Long: `Run makes a sandbox, runs one command in it, passes its streams and exit code
through and destroys the sandbox. It needs no daemon. With -d the command is
left to the user's daemon, and its sandbox stays until it is killed or, with
--rm, until the command has ended.`,
		Example: `  belljar run -- python3 -c 'print(6*7)'
  belljar run -it -- bash
  belljar run -v .:/workspace -w /workspace --timeout 10m --memory 2g -- make test
  belljar run -o json -- ./untrusted.sh`,
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, argv []string) error { return a.run(cmd, &f, argv) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(&f.detach, "detach", "d", false, "leave it to the daemon and print the sandbox's ID")
	fl.BoolVar(&f.rm, "rm", false, "with -d: kill the sandbox when the command has ended; without -d it always is")
	fl.BoolVar(&f.timing, "timing", false, "print on standard error where the time went")
	f.specFlags.add(cmd)
	f.format = a.formatFlag(cmd)
	return cmd
}

// graceTime is what a sandbox lives longer than the command in it may: the
// command's own end is the guest's business, this is the host's.
const graceTime = 15 * time.Second

func (a *app) run(cmd *cobra.Command, f *runFlags, argv []string) error {
	if err := a.checkStreams(f.interactive, f.tty, f.detach, *f.format); err != nil {
		return err
	}
	spec, vols, err := f.spec(cmd, argv, a.warn)
	if err != nil {
		return err
	}
	defer closeVolumes(vols)
	ctx, r := newRelay(cmd.Context())
	defer r.stop()
	if f.detach {
		spec.AutoRemove = f.rm
		return a.finish(ctx, sandbox.Exit{}, a.create(ctx, spec, vols, argv, *f.format), 0, 0)
	}
	one := &oneRun{a: a, f: f, argv: argv, spec: spec, vols: vols, relay: r}
	return one.run(ctx)
}

// oneRun is an attached run on its way.
type oneRun struct {
	a     *app
	f     *runFlags
	argv  []string
	spec  sandbox.Spec
	vols  []*volume
	relay *relay

	daemons bool // the sandbox is made by the daemon
	at      *attachment
	guard   *guard
	hits    []sandbox.Event
	created client.Created
	exit    sandbox.Exit
	marks   marks
}

// marks are the moments between which the time of a run goes.
type marks struct{ asked, created, exited, ended time.Time }

func (o *oneRun) run(ctx context.Context) error {
	timeout := o.spec.Timeout
	if timeout > 0 {
		o.spec.Timeout = min(timeout+graceTime, sandbox.MaxTimeout)
	}
	o.at = o.a.attach(o.relay, o.f.interactive, o.f.tty)
	defer o.at.end()
	if o.f.format.machine() {
		o.at.captureOutput(o.f.limits.outputLimit.n)
	}
	var err error
	if o.guard, err = newGuard(ctx, o.vols); err != nil {
		return err
	}
	err = o.inSession(ctx, timeout)
	o.at.end()
	o.marks.ended = time.Now()
	var found []mountReport
	if o.created.Sandbox.ID != "" { // also when it was interrupted or failed
		found = o.guard.reports(context.WithoutCancel(ctx))
	}
	if _, stopped := interrupted(ctx); stopped || err != nil {
		o.a.tellAll(found)
		return o.a.finish(ctx, o.exit, o.a.startFailure(err), 0, 0)
	}
	return o.report(ctx, found, timeout)
}

// inSession makes the sandbox, carries the command and destroys everything
// again before it returns.
func (o *oneRun) inSession(ctx context.Context, timeout time.Duration) (err error) {
	o.daemons = o.spec.Snapshot != "" || o.a.prepared(ctx, o.spec.Template)
	s, err := o.session(ctx)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		if cerr := s.close(end); err == nil {
			err = cerr
		}
	}()
	if err := sendVolumes(ctx, s.client, &o.spec, o.vols); err != nil {
		return err
	}
	start := &client.Start{
		ID: client.NewProcessID(), Argv: o.argv, Stdin: o.f.interactive, Timeout: timeout,
	}
	if o.daemons {
		o.spec.AutoRemove, start.Lease = true, snapshotLease
	}
	if o.f.tty {
		size := o.at.size()
		start.PTY = &size
	}
	progress := o.a.progress("starting a sandbox")
	o.marks.asked = time.Now()
	o.created, err = s.client.Create(ctx, o.spec, start)
	o.marks.created = time.Now()
	progress.end()
	if err != nil {
		return err
	}
	if o.created.StartError != nil {
		return o.created.StartError
	}
	o.a.tellIsolation(o.created.Sandbox.Isolation)
	ref := string(o.created.Sandbox.ID)
	streams := o.at.streams()
	o.at.begin()
	o.exit, err = s.client.Follow(ctx, ref, start.ID, streams)
	o.marks.exited = time.Now()
	o.at.end() // the terminal goes back before the clean-up
	if err == nil {
		o.limits(ctx, s.client, ref)
	}
	return err
}

// snapshotLease is how long a command in a daemon's sandbox outlives a run that
// was killed; the sandbox goes with it.
const snapshotLease = 10 * time.Second

// prepared tells whether a template has a start command.
func (a *app) prepared(ctx context.Context, name string) bool {
	if name == "" || name == sandbox.DefaultTemplate {
		return false
	}
	s, err := a.templates()
	if err != nil {
		return false // the create will say so
	}
	d, err := s.Get(ctx, name)
	return err == nil && d.Start != ""
}

// session is where the sandbox is made: in an installation of its own, unless it
// starts from memory, which the daemon keeps.
func (o *oneRun) session(ctx context.Context) (*session, error) {
	if !o.daemons {
		return o.a.ephemeral(ctx)
	}
	c, err := o.a.daemon(ctx)
	if err != nil {
		return nil, err
	}
	return &session{client: c, kill: func(ctx context.Context) error {
		if o.created.Sandbox.ID == "" {
			return nil
		}
		_, err := c.Kill(ctx, string(o.created.Sandbox.ID))
		return err
	}}, nil
}

// limits finds out which limits the command has hit. A command that went well
// is not worth the question, unless a program reads the answer.
func (o *oneRun) limits(ctx context.Context, c *client.Client, ref string) {
	kills := int64(0)
	if (o.exit.Status() != 0 || o.f.format.machine()) && !o.exit.OOM {
		kills = oomKills(ctx, c, ref) // it has the manager look at all limits, too
		blameMemory(&o.exit, kills)
	}
	o.hits = limitHits(ctx, c, ref)
	if kills > 0 && !o.exit.OOM {
		o.hits = append(o.hits, sandbox.Event{
			Time: time.Now(), Kind: sandbox.EventLimit, Limit: sandbox.LimitMemory,
			Message: fmt.Sprintf("the host killed %d of its processes for want of memory", kills),
		})
	}
}

// limitHits returns the events of limits that were hit.
func limitHits(ctx context.Context, c *client.Client, ref string) []sandbox.Event {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	events, err := c.Events(ctx, ref, 0, false)
	if err != nil {
		return nil
	}
	defer events.Close()
	var out []sandbox.Event
	for {
		e, err := events.Next()
		if err == io.EOF || err != nil {
			return out
		}
		if e.Kind == sandbox.EventLimit {
			out = append(out, e)
		}
	}
}

// report prints what remains to be said and returns the exit code.
func (o *oneRun) report(ctx context.Context, found []mountReport, timeout time.Duration) error {
	a, sb := o.a, &o.created.Sandbox
	split := o.split()
	var err error
	if o.f.format.machine() {
		res := newResult(sb, o.argv, o.exit, o.at)
		res.Hits, res.Workspace, res.Timing = o.hits, found, split
		err = encode(a.out, *o.f.format, res)
	} else {
		o.tellHits()
		a.tellAll(found)
	}
	if o.f.timing && err == nil {
		err = split.print(a.err, sb.Timeline)
	}
	return a.finish(ctx, o.exit, err, limitOf(sb), timeout)
}

// tellHits mentions limits that the command has hit, unless the exit says it.
func (o *oneRun) tellHits() {
	seen := map[sandbox.LimitName]bool{}
	for _, h := range o.hits {
		if seen[h.Limit] || h.Limit == sandbox.LimitTime || h.Limit == sandbox.LimitMemory && o.exit.OOM {
			continue
		}
		seen[h.Limit] = true
		o.a.warn("limit reached: %s: %s%s", h.Limit, h.Message, limitFlag(h.Limit))
	}
}

// limitFlag names the flag that raises a limit.
func limitFlag(l sandbox.LimitName) string {
	flag, ok := map[sandbox.LimitName]string{
		sandbox.LimitCPU: "--cpus", sandbox.LimitMemory: "--memory", sandbox.LimitProcesses: "--pids",
		sandbox.LimitDisk: "--disk", sandbox.LimitOpenFiles: "--open-files", sandbox.LimitOutput: "--output-limit",
	}[l]
	if !ok {
		return ""
	}
	return fmt.Sprintf(" (%s raises it)", flag)
}

// split sorts the steps of the create into the parts that people ask about.
// The rest is our own.
func (o *oneRun) split() timing {
	took := func(name string) float64 {
		for _, s := range o.created.Sandbox.Timeline {
			if s.Name == name {
				return ms(s.Took)
			}
		}
		return 0
	}
	m := o.marks
	t := timing{
		Keeper: took("keeper"),
		Boot:   took("keeper: create"),
		Start:  took("keeper: start"),
		Guest:  took("keeper: hello"),
		Exec:   ms(m.exited.Sub(m.created)),
		End:    ms(m.ended.Sub(m.exited)),
		Total:  ms(m.ended.Sub(o.a.began)),
	}
	t.CLI = t.Total - t.Keeper - t.Boot - t.Start - t.Guest - t.Exec - t.End
	return t
}
