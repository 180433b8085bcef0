// Command bench measures what SPECIFICATION.md promises, on this machine, with
// the programs of one directory. It prints a table, or JSON for programs, and
// exits 1 when a promise is broken or a case fails.
//
//	go run ./bench --bin bin [--json] [--rounds N] [--many N] [--paused N] [--live N] [CASE...]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/belljar-sh/belljar/bench/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	kept, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case !kept:
		os.Exit(1)
	}
}

// run reports whether every promise was kept.
func run(ctx context.Context, args []string, out, progress io.Writer) (bool, error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(progress)
	bin := fs.String("bin", "bin", "directory of the three programs")
	asJSON := fs.Bool("json", false, "print JSON")
	rounds := fs.Int("rounds", harness.Rounds, "how often each side is measured")
	many := fs.Int("many", 1000, "rounds of create, exec, kill")
	paused := fs.Int("paused", 300, "sandboxes that are paused at the same time")
	live := fs.Int("live", 100, "idle sandboxes from one snapshot at the same time")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	if min(*rounds, *many, *paused, *live) < 1 {
		return false, errors.New("rounds and counts are at least 1")
	}
	e, err := newEnv(ctx, *bin, *rounds, *many)
	if err != nil {
		return false, err
	}
	defer e.Close()
	e.paused, e.live = *paused, *live
	cases, err := choose(e.cases(), fs.Args())
	if err != nil {
		return false, err
	}
	results := harness.Run(ctx, cases, progress)
	write := harness.WriteTable
	if *asJSON {
		write = harness.WriteJSON
	}
	broken := func(r *harness.Result) bool { return !r.Kept() }
	return !slices.ContainsFunc(results, broken), write(out, results)
}

func (e *env) cases() []harness.Case {
	return []harness.Case{
		{Name: "version", Summary: "start of the command line", Run: e.version},
		{Name: "run", Summary: "belljar run -- /bin/true against runsc run", Run: e.runTrue},
		{Name: "exec", Summary: "exec with a daemon against the guest's own fork and exec", Run: e.exec},
		{Name: "exact", Summary: "64 MiB through pipes and terminals", Run: e.exact},
		{Name: "throughput", Summary: "output, upload and download against the bare channel", Run: e.throughput},
		{Name: "idle", Summary: "memory of an idle sandbox against a bare one", Run: e.idle},
		{Name: "parallel", Summary: "50 creates at once", Run: e.parallel},
		{Name: "killed", Summary: "20 runs at once, half of them killed", Run: e.killed},
		{Name: "resume", Summary: "pause and resume against a cold start", Run: e.resume},
		{Name: "claim", Summary: "what waits ready in a pool, to the end of a first command", Run: e.claim},
		{Name: "resume-booted", Summary: "resume into a kernel that waits booted in a pool", Run: e.resumeBooted},
		{Name: "pages", Summary: "resume until all of 256 MiB has been read, against a copy of the pages", Run: e.pages},
		{Name: "fork", Summary: "eight copies against one checkpoint and one resume", Run: e.fork},
		{Name: "paused", Summary: "what many paused sandboxes cost the host", Run: e.pausedMany},
		{Name: "live", Summary: "memory of many idle sandboxes from one snapshot", Run: e.liveMany},
		{Name: "neighbour", Summary: "exec of a sandbox while another attacks their keeper", Run: e.neighbour},
		{Name: "rounds", Summary: "many rounds of create, exec, kill", Run: e.manyRounds},
	}
}

func choose(all []harness.Case, names []string) ([]harness.Case, error) {
	if len(names) == 0 {
		return all, nil
	}
	var out []harness.Case
	for _, name := range names {
		i := slices.IndexFunc(all, func(c harness.Case) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no case %q", name)
		}
		out = append(out, all[i])
	}
	return out, nil
}
