package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

// dirtyBytes is what the large sandbox holds in memory.
const dirtyBytes = 256 << 20

// resume measures how long a sandbox takes to go to disk and to come back: to
// the end of a command that was started while it was paused.
func (e *env) resume(ctx context.Context, r *harness.Result) error {
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
	small, killSmall, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer killSmall()
	large, killLarge, err := e.holding(ctx, c, dirtyBytes)
	if err != nil {
		return err
	}
	defer killLarge()

	round := 0
	var pauses [2][]time.Duration
	turn := func(which int, id string) harness.Side {
		return harness.Side{Name: "resume", Do: func(ctx context.Context) (time.Duration, error) {
			start := time.Now()
			if _, err := c.Pause(ctx, id); err != nil {
				return 0, fmt.Errorf("pause: %w", err)
			}
			paused := time.Now()
			pauses[which] = append(pauses[which], paused.Sub(start))
			_, err := output(ctx, c, id, insidePath, "hello")
			return time.Since(paused), err
		}}
	}
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Side{Name: "runsc run", Do: func(ctx context.Context) (time.Duration, error) {
			round++
			return e.runBare(ctx, root, "bare-resume-"+strconv.Itoa(round))
		}},
		turn(0, small),
		turn(1, large),
		harness.Timed("copy", func(context.Context) error { return e.copySynced(dirtyBytes) }),
	)
	if err != nil {
		return err
	}
	// InTurn warms up first; what it left out is left out here.
	for n := range pauses {
		pauses[n] = pauses[n][len(pauses[n])-len(times[n+1]):]
	}
	r.AddTimes("runsc run -- /bin/true", times[0])
	r.AddTimes("pause, small", pauses[0])
	r.AddTimes("resume to an answered exec, small", times[1])
	r.AddTimes("pause, 256 MiB dirty", pauses[1])
	r.AddTimes("resume to an answered exec, 256 MiB dirty", times[2])
	r.AddTimes("copy of 256 MiB, synced", times[3])
	r.AtMost("resume, small / runsc run", harness.Ratio(times[1], times[0]), 0.9, "times")
	r.AtMost("resume, 256 MiB / small", harness.Ratio(times[2], times[1]), 1.5, "times")
	r.AtMost("pause, 256 MiB / copy", harness.Ratio(pauses[1], times[3]), 1.3, "times")
	return nil
}

// holding makes a sandbox with a process that holds n bytes which are no zeros.
func (e *env) holding(ctx context.Context, c *client.Client, n int64) (id string, kill func(), err error) {
	id, kill, err = e.sandbox(ctx, c, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 2 << 30}})
	if err != nil {
		return "", nil, err
	}
	argv := []string{insidePath, "hold", strconv.FormatInt(n, 10), "/tmp/ready"}
	if _, err = c.Start(ctx, id, client.Start{ID: "hold", Argv: argv}); err == nil {
		_, err = output(ctx, c, id, "/bin/sh", "-c", "until [ -e /tmp/ready ]; do sleep 0.05; done")
	}
	if err != nil {
		kill()
		return "", nil, fmt.Errorf("a process that holds memory: %w", err)
	}
	return id, kill, nil
}

// copySynced copies a file of n bytes beside the state directory and syncs it.
func (e *env) copySynced(n int64) error {
	from, to := filepath.Join(e.state, "copied"), filepath.Join(e.state, "copy")
	src, err := os.OpenFile(from, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer src.Close()
	if fi, err := src.Stat(); err != nil || fi.Size() != n {
		if _, err := io.CopyN(src, zeros(n), n); err != nil {
			return err
		}
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return err
	}
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer os.Remove(to)
	defer dst.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 1<<20)); err != nil {
		return err
	}
	return dst.Sync()
}
