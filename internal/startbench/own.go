package startbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// The command that every sandbox runs, and what it writes.
var (
	echo   = []string{"echo", "hi"}
	echoed = "hi\n"
)

// forks is how many copies a fork makes.
const forks = 8

// A pool serves those who ask for its limits alone, so the limits choose between
// a cold start and either pool. They make no other difference.
var (
	coldLimits   = sandbox.Limits{}
	bootedLimits = sandbox.Limits{Processes: 1023}
	readyLimits  = sandbox.Limits{Processes: 1022}
)

// own prepares the starts of Belljar's own: pools, paused sandboxes, a snapshot
// and what is forked.
func (h *home) own(ctx context.Context) ([]*start, error) {
	for _, p := range []sandbox.PoolSpec{
		{Template: h.o.Template, Limits: readyLimits, Ready: 1, Ceiling: 1},
		{Template: h.o.Template, Limits: bootedLimits, Booted: 1, Ceiling: 1},
	} {
		if _, err := h.c.SetPool(ctx, p); err != nil {
			return nil, err
		}
	}
	var ids [4]string
	for i, l := range []sandbox.Limits{coldLimits, coldLimits, coldLimits, bootedLimits} {
		made, err := h.c.Create(ctx, h.spec(l), nil)
		if err != nil {
			return nil, err
		}
		ids[i] = string(made.Sandbox.ID)
	}
	running, forked, cold, booted := ids[0], ids[1], ids[2], ids[3]
	snapshot, err := h.c.Snapshot(ctx, running, "")
	if err != nil {
		return nil, err
	}
	all := []*start{h.run(), h.exec(running)}
	for _, of := range []struct {
		origin sandbox.Origin
		limits sandbox.Limits
	}{{sandbox.OriginCold, coldLimits}, {sandbox.OriginBooted, bootedLimits}, {sandbox.OriginReady, readyLimits}} {
		all = append(all, h.claim(of.origin, of.limits), h.create(of.origin, of.limits))
	}
	all = append(all, h.resume(sandbox.OriginCold, cold), h.resume(sandbox.OriginBooted, booted), h.fromSnapshot(string(snapshot.ID)), h.fork(forked))
	for _, s := range all {
		s.ours = true
	}
	return all, nil
}

func (h *home) spec(l sandbox.Limits) sandbox.Spec {
	return sandbox.Spec{Template: h.o.Template, Limits: l}
}

func (h *home) run() *start {
	return &start{name: "belljar run", what: "whole process, without a daemon", once: func(ctx context.Context) (time.Duration, error) {
		if err := h.settle(ctx); err != nil {
			return 0, err
		}
		args := append([]string{"run", "--template", h.o.Template, "--"}, echo...)
		return timed(h.belljar(ctx, args...))
	}}
}

func (h *home) exec(id string) *start {
	return &start{name: "exec", what: "in a sandbox that runs, to the end of echo", once: func(ctx context.Context) (time.Duration, error) {
		if err := h.settle(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		err := h.echo(ctx, id)
		return time.Since(began), err
	}}
}

// claim makes a sandbox and no process in it.
func (h *home) claim(origin sandbox.Origin, l sandbox.Limits) *start {
	name := "claim, " + string(origin)
	if origin == sandbox.OriginCold {
		name = "create alone, cold"
	}
	return &start{name: name, what: "create over the API: the guest has answered", once: func(ctx context.Context) (time.Duration, error) {
		if err := h.settle(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		made, err := h.c.Create(ctx, h.spec(l), nil)
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		return took, errors.Join(h.kill(ctx, string(made.Sandbox.ID)), expect(origin, made.Sandbox))
	}}
}

// create makes a sandbox that begins with the command.
func (h *home) create(origin sandbox.Origin, l sandbox.Limits) *start {
	return &start{name: "create, " + string(origin), what: "create over the API, to the end of echo", once: func(ctx context.Context) (time.Duration, error) {
		sb, took, err := h.made(ctx, h.spec(l))
		if err != nil {
			return 0, err
		}
		return took, expect(origin, sb)
	}}
}

// made makes a sandbox that begins with the command, and tells how long it took to
// the end of that. The sandbox is gone afterwards.
func (h *home) made(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, time.Duration, error) {
	if err := h.settle(ctx); err != nil {
		return sandbox.Sandbox{}, 0, err
	}
	var out, errs bytes.Buffer
	began := time.Now()
	made, err := h.c.Create(ctx, spec, &client.Start{ID: "echo", Argv: echo})
	if err != nil {
		return sandbox.Sandbox{}, 0, err
	}
	id := string(made.Sandbox.ID)
	var exit sandbox.Exit
	if made.StartError != nil {
		err = made.StartError
	} else {
		exit, err = h.c.Follow(ctx, id, "echo", client.Streams{Stdout: &out, Stderr: &errs})
	}
	took := time.Since(began)
	if err == nil {
		err = checkEcho(exit, &out, &errs)
	}
	return made.Sandbox, took, errors.Join(err, h.kill(ctx, id))
}

func (h *home) resume(origin sandbox.Origin, id string) *start {
	s := &start{name: "resume, " + string(origin), what: "of a small paused sandbox, to the end of echo"}
	s.once = func(ctx context.Context) (time.Duration, error) {
		if _, err := h.c.Pause(ctx, id); err != nil {
			return 0, err
		}
		if err := h.settle(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		err := h.echo(ctx, id)
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		sb, err := h.c.Get(ctx, id)
		if err == nil {
			err = expect(origin, sb)
		}
		return took, err
	}
	return s
}

func (h *home) fromSnapshot(snapshot string) *start {
	return &start{name: "snapshot", what: "create from a snapshot, to the end of echo", once: func(ctx context.Context) (time.Duration, error) {
		_, took, err := h.made(ctx, sandbox.Spec{Snapshot: snapshot})
		return took, err
	}}
}

func (h *home) fork(id string) *start {
	stopped := &part{name: "fork, stopped", what: "how long the source stood still"}
	s := &start{name: fmt.Sprintf("fork of %d", forks), what: "until all copies have ended echo"}
	s.within = []*part{stopped}
	s.once = func(ctx context.Context) (time.Duration, error) {
		if err := h.settle(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		made, stop, err := h.c.Fork(ctx, id, forks, "")
		if err != nil {
			return 0, err
		}
		err = each(made, func(sb sandbox.Sandbox) error { return h.echo(ctx, string(sb.ID)) })
		took := time.Since(began)
		stopped.times = append(stopped.times, stop)
		return took, errors.Join(err, each(made, func(sb sandbox.Sandbox) error { return h.kill(ctx, string(sb.ID)) }))
	}
	return s
}

// each calls f for all sandboxes at once.
func each(all []sandbox.Sandbox, f func(sandbox.Sandbox) error) error {
	errs := make(chan error, len(all))
	for _, sb := range all {
		go func() { errs <- f(sb) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	return err
}

// echo runs the command and checks what it wrote.
func (h *home) echo(ctx context.Context, id string) error {
	var out, errs bytes.Buffer
	exit, err := h.c.Exec(ctx, id, client.ExecOptions{Argv: echo, Streams: client.Streams{Stdout: &out, Stderr: &errs}})
	if err != nil {
		return err
	}
	return checkEcho(exit, &out, &errs)
}

func checkEcho(exit sandbox.Exit, out, errs *bytes.Buffer) error {
	if exit.Status() != 0 || out.String() != echoed {
		return fmt.Errorf("echo ended with %d: %s", exit.Status(), brief(out.String()+errs.String()))
	}
	return nil
}

func (h *home) kill(ctx context.Context, id string) error {
	_, err := h.c.Kill(context.WithoutCancel(ctx), id)
	return err
}

// expect tells when a sandbox did not come from where it was to come from.
func expect(origin sandbox.Origin, sb sandbox.Sandbox) error {
	if sb.Origin == origin {
		return nil
	}
	return fmt.Errorf("the sandbox is %s instead of %s", sb.Origin, origin)
}

// settleTime bounds how long pools may take to be full.
const settleTime = time.Minute

// settle waits until the pools are full: filling them would slow down what is
// measured.
func (h *home) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pools, err := h.c.Pools(ctx)
		if err != nil {
			return err
		}
		full, reason := true, ""
		for _, p := range pools {
			if p.ReadyNow < p.Ready || p.BootedNow < p.Booted {
				full, reason = false, p.Reason
			}
		}
		if full {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("a pool does not fill: %s: %w", reason, ctx.Err())
		}
	}
}

// timed runs a command to its end and checks what it wrote.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %s", err, brief(errs.String()+out.String()))
	case out.String() != echoed:
		return 0, fmt.Errorf("it wrote %q", brief(out.String()))
	}
	return took, nil
}

// quietly runs a command; its output becomes part of an error.
func quietly(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, brief(string(out)))
	}
	return nil
}

// brief is the last line of what a program said, within bounds.
func brief(s string) string {
	s = strings.TrimSpace(s)
	s = s[strings.LastIndexByte(s, '\n')+1:]
	const most = 300
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}
