package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// parallel asks for 50 sandboxes at once.
func (e *env) parallel(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	before, err := e.warm(ctx, c)
	if err != nil {
		return err
	}
	const n = 50
	errs := make([]error, n)
	ids := make([]string, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			created, err := c.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 256 << 20}}, nil)
			if err != nil {
				errs[i] = err
				return
			}
			ids[i] = string(created.Sandbox.ID)
			_, errs[i] = output(ctx, c, ids[i], "/bin/true")
		})
	}
	wg.Wait()
	r.Add("until the last has answered an exec", time.Since(start).Seconds(), "s")
	succeeded, unclean := 0, 0
	for i := range n {
		switch err := errs[i]; {
		case err == nil:
			succeeded++
		case !sandbox.KindOf(err).Retryable():
			unclean++
			r.Logf("create %d: %v", i, err)
		}
	}
	r.Add("of 50 creates succeeded", float64(succeeded), "")
	r.AtMost("creates that failed without a typed, retryable error", float64(unclean), 0, "")
	for _, id := range ids {
		if id != "" {
			if _, err := c.Kill(ctx, id); err != nil {
				return err
			}
		}
	}
	left, err := e.clean(ctx, before, 20*time.Second)
	addLeft(r, left)
	return err
}

// warm creates and kills a sandbox, so that what stays for later (a keeper, a
// log, a journal) is there, and returns what is held then.
func (e *env) warm(ctx context.Context, c *client.Client) (harness.Holdings, error) {
	for range 3 {
		if err := oneRound(ctx, c); err != nil {
			return harness.Holdings{}, unavailable(err)
		}
	}
	return e.watched().Take()
}

func oneRound(ctx context.Context, c *client.Client) error {
	created, err := c.Create(ctx, sandbox.Spec{}, nil)
	if err != nil {
		return err
	}
	id := string(created.Sandbox.ID)
	_, err = output(ctx, c, id, "/bin/true")
	_, killErr := c.Kill(context.WithoutCancel(ctx), id)
	return errors.Join(err, killErr)
}

// killed starts 20 runs at once while a daemon starts, and kills half of them.
func (e *env) killed(ctx context.Context, r *harness.Result) error {
	// What a first run and a first daemon leave for later is no leak.
	if err := runQuiet(e.belljar(ctx, "run", "--", "/bin/true")); err != nil {
		return err
	}
	if err := runQuiet(e.belljar(ctx, "ls")); err != nil {
		return err
	}
	if err := e.stopDaemon(ctx); err != nil {
		return err
	}
	before, err := e.watched().Take()
	if err != nil {
		return err
	}
	const n = 20
	var wg sync.WaitGroup
	wrong := make([]string, n)
	for i := range n {
		var out, errs bytes.Buffer
		cmd := e.belljar(ctx, "run", "--", "/bin/sh", "-c", "sleep 3; echo ended")
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			return err
		}
		if i%2 == 1 {
			// Spread over the life of a run: from its first instruction to the
			// time when its command ends.
			kill := time.AfterFunc(time.Duration(i)*250*time.Millisecond, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
			defer kill.Stop()
		}
		wg.Go(func() {
			err := cmd.Wait()
			if i%2 == 0 && (err != nil || strings.TrimSpace(out.String()) != "ended") {
				wrong[i] = fmt.Sprintf("%v: %q %q", err, out.String(), errs.String())
			}
		})
	}
	c, err := e.dial(ctx) // the daemon starts, and reconciles, in the midst of it
	if err != nil {
		return err
	}
	_, err = c.List(ctx, true)
	c.Close()
	wg.Wait()
	if err != nil {
		return err
	}
	hurt := 0
	for i, w := range wrong {
		if w != "" {
			hurt++
			r.Logf("run %d was not killed and yet: %s", i, w)
		}
	}
	r.AtMost("runs that lost their sandbox to another", float64(hurt), 0, "")
	if err := e.stopDaemon(ctx); err != nil {
		return err
	}
	left, err := e.clean(ctx, before, 30*time.Second)
	addLeft(r, left)
	return err
}

func (e *env) stopDaemon(ctx context.Context) error {
	c, err := client.Dial(ctx, client.Options{StateDir: e.state, RuntimeDir: e.rt, NoStart: true})
	if err != nil {
		return nil // none runs
	}
	defer c.Close()
	return c.Stop(ctx, true)
}

// manyRounds repeats create, exec and kill, and watches what grows.
func (e *env) manyRounds(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	before, err := e.warm(ctx, c)
	if err != nil {
		return err
	}
	start := time.Now()
	var early, late usage
	for i := range e.many {
		if err := oneRound(ctx, c); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		switch {
		case i == e.many/10:
			early, err = e.usage(ctx, c)
		case i == e.many-1:
			late, err = e.usage(ctx, c)
		case i%100 == 99:
			r.Logf("round %d after %.0f s", i+1, time.Since(start).Seconds())
		}
		if err != nil {
			return err
		}
	}
	r.Add("one round", time.Since(start).Seconds()*1000/float64(e.many), "ms")
	left, err := e.clean(ctx, before, 20*time.Second)
	if err != nil {
		return err
	}
	addLeft(r, left)
	r.AtMost("descriptors of daemon and keepers, last round above a tenth of the way", float64(late.descriptors-early.descriptors), 0, "")
	r.AtMost("memory of daemon and keepers, last round above a tenth of the way", float64(late.memory-early.memory)/(1<<20), 8, "MiB")
	return nil
}

// usage is what the long-lived processes use.
type usage struct {
	descriptors int
	memory      int64
}

func (e *env) usage(ctx context.Context, c *client.Client) (usage, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return usage{}, err
	}
	keepers, err := e.keepers()
	if err != nil {
		return usage{}, err
	}
	u := usage{harness.Descriptors(info.PID), harness.RSS(info.PID)}
	for _, k := range keepers {
		u.descriptors += harness.Descriptors(k.PID)
		u.memory += harness.RSS(k.PID)
	}
	return u, nil
}

// program prepares a program that is not of the installation.
func (e *env) program(ctx context.Context, path string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, path, args...)
}
