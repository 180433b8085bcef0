package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// settle is how long sandboxes stand before they are measured: garbage
// collectors give memory back late.
const settle = 5 * time.Second

// idleOf starts n sandboxes of each kind and returns the memory of one in MiB.
func (e *env) idleOf(ctx context.Context, r *harness.Result, n int) (ours, bare float64, err error) {
	stop, err := e.startBare(ctx, n)
	defer stop()
	if err != nil {
		return 0, 0, err
	}
	c, err := e.dial(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	kill, err := e.startIdle(ctx, c, n)
	defer kill()
	if err != nil {
		return 0, 0, err
	}
	if err := sleep(ctx, settle); err != nil {
		return 0, 0, err
	}
	if err := e.addShares(r, n); err != nil {
		return 0, 0, err
	}
	return e.measureIdle(n)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startIdle creates n sandboxes whose guest has run one command.
func (e *env) startIdle(ctx context.Context, c *client.Client, n int) (func(), error) {
	return e.startAll(ctx, c, sandbox.Spec{}, n)
}

// startAll creates n sandboxes of spec whose guest has run one command.
func (e *env) startAll(ctx context.Context, c *client.Client, spec sandbox.Spec, n int) (func(), error) {
	var ids []string
	kill := func() {
		for _, id := range ids {
			_, _ = c.Kill(context.WithoutCancel(ctx), id)
		}
	}
	for range n {
		created, err := c.Create(ctx, spec, nil)
		if err != nil {
			return kill, unavailable(err)
		}
		ids = append(ids, string(created.Sandbox.ID))
		if _, err := output(ctx, c, ids[len(ids)-1], "/bin/true"); err != nil {
			return kill, err
		}
	}
	return kill, nil
}

// startBare starts n sandboxes without Belljar. They are detached, so that no
// waiting runsc process shares, and thereby hides, memory of theirs.
func (e *env) startBare(ctx context.Context, n int) (func(), error) {
	var names []string
	stop := func() {
		for _, name := range names {
			_ = runQuiet(e.runscCommand(context.WithoutCancel(ctx), "delete", "--force", name))
		}
	}
	root, err := e.bareRoot()
	if err != nil {
		return stop, err
	}
	for i := range n {
		name := fmt.Sprintf("bare-idle-%d-%d", n, i)
		dir, err := newBundle(name, root, "/inside", "idle").write(e.dir, name)
		if err != nil {
			return stop, err
		}
		names = append(names, name)
		// No pipes: a detached sandbox would hold them open.
		if err := e.runsc(ctx, dir, name, "--detach").Run(); err != nil {
			return stop, fmt.Errorf("start a bare sandbox: %w", err)
		}
	}
	return stop, nil
}

// measureIdle adds up both kinds.
func (e *env) measureIdle(n int) (ours, bare float64, err error) {
	procs, err := harness.Processes()
	if err != nil {
		return 0, 0, err
	}
	keepers, err := e.keepers()
	if err != nil {
		return 0, 0, err
	}
	var mine, theirs []harness.Process
	for _, k := range keepers {
		mine = append(mine, harness.Tree(procs, k.PID)...)
	}
	for _, p := range procs {
		if p.Exe == e.tool("runsc") {
			theirs = append(theirs, p)
		}
	}
	for _, p := range []struct {
		of  []harness.Process
		sum *float64
	}{{mine, &ours}, {theirs, &bare}} {
		if len(p.of) == 0 {
			return 0, 0, fmt.Errorf("no process of a sandbox was found")
		}
		pss, err := harness.PSS(p.of)
		if err != nil {
			return 0, 0, err
		}
		*p.sum = float64(pss) / (1 << 20) / float64(n)
	}
	return ours, bare, nil
}

// addShares records what each kind of process of ours holds.
func (e *env) addShares(r *harness.Result, n int) error {
	procs, err := harness.Processes()
	if err != nil {
		return err
	}
	keepers, err := e.keepers()
	if err != nil {
		return err
	}
	shares := map[string]float64{}
	for _, k := range keepers {
		for _, p := range harness.Tree(procs, k.PID) {
			pss, err := harness.PSS([]harness.Process{p})
			if err != nil {
				return err
			}
			shares[p.Name] += float64(pss) / (1 << 20) / float64(n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		r.Add(fmt.Sprintf("of which %s, with %d, each", name, n), shares[name], "MiB PSS")
	}
	return nil
}
