package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

// claimRounds is how often a claim is measured: often enough for a tail.
const claimRounds = 50

// pool has n sandboxes of the host template kept and returns a function that
// waits until all are there, and one that takes the pool away.
func (e *env) pool(ctx context.Context, c *client.Client, ready, booted int) (full func(context.Context) error, remove func(), err error) {
	if _, err := c.SetPool(ctx, sandbox.PoolSpec{Template: "host", Ready: ready, Booted: booted, Ceiling: ready + booted}); err != nil {
		return nil, nil, unavailable(err)
	}
	remove = func() { _ = c.RemovePool(context.WithoutCancel(ctx), "host") }
	full = func(ctx context.Context) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			list, err := c.Pools(ctx)
			if err != nil {
				return err
			}
			if len(list) == 1 && list[0].ReadyNow == ready && list[0].BootedNow == booted {
				return quiet(ctx)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return full, remove, nil
}

// quiet lets what has just been made come to rest.
func quiet(ctx context.Context) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// claimed makes a sandbox and checks that it was claimed.
func claimed(ctx context.Context, c *client.Client, want sandbox.Origin, start *client.Start) (client.Created, error) {
	made, err := c.Create(ctx, sandbox.Spec{}, start)
	if err == nil && made.Sandbox.Origin != want {
		err = fmt.Errorf("the sandbox is %s, not %s", made.Sandbox.Origin, want)
	}
	return made, err
}

// claim measures how long a sandbox takes that waits ready: until its guest
// has answered, and until the end of a first command.
func (e *env) claim(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	own, kill, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer kill()
	full, remove, err := e.pool(ctx, c, 2, 0)
	if err != nil {
		return err
	}
	defer remove()

	// Each side begins when nothing is being made.
	side := func(name string, do func(context.Context) (time.Duration, error)) harness.Side {
		return harness.Side{Name: name, Do: func(ctx context.Context) (time.Duration, error) {
			if err := full(ctx); err != nil {
				return 0, err
			}
			return do(ctx)
		}}
	}
	steps := map[string][]time.Duration{}
	alone := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		made, err := claimed(ctx, c, sandbox.OriginReady, nil)
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		for _, s := range made.Sandbox.Timeline {
			steps[s.Name] = append(steps[s.Name], s.Took)
		}
		_, err = c.Kill(ctx, string(made.Sandbox.ID))
		return took, err
	}
	echo := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		made, err := claimed(ctx, c, sandbox.OriginReady, &client.Start{ID: "echo", Argv: []string{"echo", "hi"}})
		if err != nil {
			return 0, err
		}
		took, err := e.echoed(ctx, c, made, began)
		_, kerr := c.Kill(ctx, string(made.Sandbox.ID))
		return took, errors.Join(err, kerr)
	}
	sides := []harness.Side{
		side("claim", alone), side("claim and echo", echo),
		side("the guest's own fork and exec", func(ctx context.Context) (time.Duration, error) {
			whole, _, err := forkExec(ctx, c, own, "/bin/echo", "hi")
			return whole, err
		}),
	}
	_, err = exec.LookPath("bwrap")
	bwrap := err == nil
	if bwrap {
		sides = append(sides, side("bwrap", func(ctx context.Context) (time.Duration, error) {
			cmd := exec.CommandContext(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "echo", "hi")
			began := time.Now()
			err := runQuiet(cmd)
			return time.Since(began), err
		}))
	} else {
		r.Logf("without bwrap: probe: no such program in the PATH")
	}
	times, err := harness.InTurn(ctx, max(claimRounds, e.rounds), sides...)
	if err != nil {
		return err
	}
	addTail(r, "claim over the API", times[0])
	for _, s := range []string{"template", "keeper: hello", "claim ready"} {
		if len(steps[s]) > 0 {
			addTail(r, "of which "+s, steps[s])
		}
	}
	addTail(r, "claim to the end of echo hi", times[1])
	addTail(r, "fork and exec of echo hi by a process inside", times[2])
	if bwrap {
		addTail(r, "bwrap --unshare-all -- echo hi", times[3])
	}
	r.AtMost("claim over the API", harness.Milliseconds(harness.Median(times[0])), 5, "ms")
	r.AtMost("claim to the end of echo hi, above fork and exec inside", harness.Milliseconds(harness.Median(times[1])-harness.Median(times[2])), 8, "ms")
	return nil
}

// echoed follows the first command of a sandbox to its end.
func (e *env) echoed(ctx context.Context, c *client.Client, made client.Created, began time.Time) (time.Duration, error) {
	var out strings.Builder
	exit, err := c.Follow(ctx, string(made.Sandbox.ID), "echo", client.Streams{Stdout: &out, Stderr: io.Discard})
	took := time.Since(began)
	switch {
	case made.StartError != nil:
		return 0, made.StartError
	case err != nil:
		return 0, err
	case exit.Status() != 0 || out.String() != "hi\n":
		return 0, fmt.Errorf("echo: %+v, %q", exit, out.String())
	}
	return took, nil
}

// addTail records median and 99th percentile.
func addTail(r *harness.Result, name string, times []time.Duration) {
	sorted := slices.Sorted(slices.Values(times))
	r.Add(name+", median", harness.Milliseconds(harness.Median(sorted)), "ms")
	r.Add(name+", p99", harness.Milliseconds(sorted[(len(sorted)*99+99)/100-1]), "ms")
}

// resumeBooted measures how long a small paused sandbox takes to come back into
// a kernel that has booted: to the end of a command that was started while it
// was paused.
func (e *env) resumeBooted(ctx context.Context, r *harness.Result) error {
	if err := e.needRunsc(ctx); err != nil {
		return err
	}
	root, _, err := template.New(e.state+"/templates", template.Options{}).Resolve(ctx, "host")
	if err != nil {
		return err
	}
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	id, kill, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer kill()
	full, remove, err := e.pool(ctx, c, 0, 1)
	if err != nil {
		return err
	}
	defer remove()
	round := 0
	times, err := harness.InTurn(ctx, max(claimRounds, e.rounds),
		harness.Side{Name: "runsc run", Do: func(ctx context.Context) (time.Duration, error) {
			if err := full(ctx); err != nil {
				return 0, err
			}
			round++
			return e.runBare(ctx, root, "bare-booted-"+strconv.Itoa(round))
		}},
		harness.Side{Name: "resume", Do: func(ctx context.Context) (time.Duration, error) {
			if _, err := c.Pause(ctx, id); err != nil {
				return 0, fmt.Errorf("pause: %w", err)
			}
			if err := full(ctx); err != nil {
				return 0, err
			}
			began := time.Now()
			if _, err := output(ctx, c, id, insidePath, "hello"); err != nil {
				return 0, err
			}
			took := time.Since(began)
			sb, err := c.Get(ctx, id)
			if err == nil && sb.Origin != sandbox.OriginBooted {
				err = fmt.Errorf("the sandbox is %s, not %s", sb.Origin, sandbox.OriginBooted)
			}
			return took, err
		}},
	)
	if err != nil {
		return err
	}
	addTail(r, "runsc run -- /bin/true", times[0])
	addTail(r, "resume into a booted kernel, to an answered exec", times[1])
	r.AtMost("resume into a booted kernel / runsc run", harness.Ratio(times[1], times[0]), 0.36, "times")
	return nil
}
