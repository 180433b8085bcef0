package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// version compares `belljar version` with a Go program of 3 MB that prints a
// line.
func (e *env) version(ctx context.Context, r *harness.Result) error {
	if err := e.buildTool(ctx, "hello"); err != nil {
		return err
	}
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Timed("hello", func(ctx context.Context) error { return runQuiet(e.program(ctx, e.tool("hello"))) }),
		harness.Timed("belljar version", func(ctx context.Context) error { return runQuiet(e.belljar(ctx, "version")) }),
	)
	if err != nil {
		return err
	}
	r.AddTimes("3 MB Go program", times[0])
	r.AddTimes("belljar version", times[1])
	r.AtMost("belljar version / 3 MB Go program", harness.Ratio(times[1], times[0]), 3, "times")
	return nil
}

// forkTimes is what the inside program prints of its forkexec role.
type forkTimes struct {
	Whole     []time.Duration `json:"whole"`
	FirstByte []time.Duration `json:"first_byte"`
}

// forkExec has a resident process inside run argv a few times and returns the
// medians: the guest's own fork and exec, without any channel.
func forkExec(ctx context.Context, c *client.Client, id string, argv ...string) (whole, first time.Duration, err error) {
	out, err := output(ctx, c, id, append([]string{insidePath, "forkexec", "5"}, argv...)...)
	if err != nil {
		return 0, 0, err
	}
	var t forkTimes
	if err := json.Unmarshal(out, &t); err != nil {
		return 0, 0, fmt.Errorf("forkexec: %w", err)
	}
	return harness.Median(t.Whole), harness.Median(t.FirstByte), nil
}

// firstByte notes when the first byte came.
type firstByte struct{ at time.Time }

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() && len(p) > 0 {
		f.at = time.Now()
	}
	return len(p), nil
}

// exec compares `belljar exec` and the API with the guest's own fork and exec.
func (e *env) exec(ctx context.Context, r *harness.Result) error {
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
	own := func(ctx context.Context) (time.Duration, error) {
		whole, _, err := forkExec(ctx, c, id, "/bin/true")
		return whole, err
	}
	ownFirst := func(ctx context.Context) (time.Duration, error) {
		_, first, err := forkExec(ctx, c, id, insidePath, "hello")
		return first, err
	}
	overAPI := func(ctx context.Context) (time.Duration, error) {
		var f firstByte
		start := time.Now()
		_, err := c.Exec(ctx, id, client.ExecOptions{Argv: []string{insidePath, "hello"}, Streams: client.Streams{Stdout: &f, Stderr: io.Discard}})
		if err == nil && f.at.IsZero() {
			err = fmt.Errorf("no output")
		}
		return f.at.Sub(start), err
	}
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Side{Name: "the guest's own fork and exec", Do: own},
		harness.Timed("belljar exec", func(ctx context.Context) error { return runQuiet(e.belljar(ctx, "exec", id, "--", "/bin/true")) }),
		harness.Side{Name: "the guest's own first byte", Do: ownFirst},
		harness.Side{Name: "first byte over the API", Do: overAPI},
	)
	if err != nil {
		return err
	}
	r.AddTimes("fork and exec of /bin/true by a process inside", times[0])
	r.AddTimes("belljar exec -- /bin/true, whole process", times[1])
	r.AddTimes("first byte, process inside", times[2])
	r.AddTimes("first byte, over the API", times[3])
	r.AtMost("belljar exec above fork and exec inside", harness.Milliseconds(harness.Median(times[1])-harness.Median(times[0])), 30, "ms")
	r.AtMost("first byte over the API / inside", harness.Ratio(times[3], times[2]), 1.3, "times")
	return nil
}
