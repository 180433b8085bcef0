package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// Streams connects a caller to a process. All fields are optional.
type Streams struct {
	// Stdin is copied to the process until its end or the process's. It is for
	// a process with Start.Stdin. A Read that is under way when the process
	// exits is not waited for.
	Stdin io.Reader
	// Stdout and Stderr take the output; it is acknowledged when Write has
	// returned, so a slow writer holds the process back. An error of Write ends
	// the call.
	Stdout, Stderr io.Writer
	// Resize carries new sizes of the terminal.
	Resize <-chan PTYSize
	// Signals carries signal numbers that are passed on to the process's
	// group.
	Signals <-chan int
	// OnGap is told of output that was lost, because nobody was there to read
	// it for too long. When it is nil lost output makes the call fail, after the
	// process has ended, with [sandbox.ResourceExhausted].
	OnGap func(stream StreamID, lost int64)
}

// ExecOptions says what [Client.Exec] runs.
type ExecOptions struct {
	Streams
	ID      string // of the process; empty: drawn
	Argv    []string
	Env     map[string]string
	Cwd     string
	User    string
	TTY     bool
	Size    PTYSize       // of the terminal; zero: 80 columns and 24 rows
	Timeout time.Duration // then the whole tree is killed and Exit.TimedOut set; 0: none
	Keep    bool          // descendants outlive the process
	Tag     string
	// Lease is how long the process lives on when this client has died or the
	// daemon cannot be reached: then the whole tree is killed. 0: 45 seconds,
	// longer than Exec tries to come back; less than that may kill a process
	// over a slow restart of the daemon.
	Lease time.Duration
	// Started, when set, is called once the process runs.
	Started func(Process)
}

func (o *ExecOptions) start() Start {
	s := Start{
		ID: o.ID, Argv: o.Argv, Env: o.Env, Cwd: o.Cwd, User: o.User,
		Stdin: o.Stdin != nil, Tag: o.Tag, Timeout: o.Timeout, Keep: o.Keep,
		Lease: cmp.Or(o.Lease, ownerGrace),
	}
	if s.ID == "" {
		s.ID = NewProcessID()
	}
	if o.TTY {
		size := o.Size
		if size.Cols == 0 || size.Rows == 0 {
			size = PTYSize{Cols: 80, Rows: 24}
		}
		s.PTY, s.Stdin = &size, true
	}
	return s
}

// Exec runs a command in a sandbox and returns how it ended, all of its output
// having been written. When the connection breaks it goes on where it stopped:
// no byte of input or output is lost or doubled. It gives up when the API
// cannot be reached for half a minute.
//
// When the sandbox itself ends, Exit tells it as a process killed by signal 9,
// with OOM, TimedOut and Reason set as they apply.
//
// The process does not outlive its client for long: see ExecOptions.Lease. What
// is to go on by itself is for [Client.Start].
//
// When ctx ends the process is killed and the error's kind is
// [sandbox.Canceled] or [sandbox.DeadlineExceeded].
func (c *Client) Exec(ctx context.Context, ref string, o ExecOptions) (sandbox.Exit, error) {
	start := o.start()
	var p Process
	var out *Output
	err := c.again(ctx, func() (err error) {
		p, out, err = c.StartAttached(ctx, ref, start)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			c.forget(ctx, ref, start.ID, false) // it may have begun all the same
		}
		return c.ended(ctx, ref, err)
	}
	if o.Started != nil {
		o.Started(p)
	}
	f := &follower{c: c, ref: ref, process: start.ID, s: o.Streams, fresh: true, first: out}
	exit, err := f.run(ctx)
	c.forget(ctx, ref, start.ID, err == nil)
	return exit, err
}

// Follow connects streams to a process that has been started and returns how
// it ended, as [Client.Exec] does. It begins with the oldest output that is
// kept and the input that comes after what the process has had. When ctx ends
// the process is left alone.
func (c *Client) Follow(ctx context.Context, ref, process string, s Streams) (sandbox.Exit, error) {
	f := &follower{c: c, ref: ref, process: process, s: s}
	return f.run(ctx)
}

// forgetTime bounds the clean-up after an Exec.
const forgetTime = 10 * time.Second

// forget kills what is left of a process, even when ctx has ended. One that has
// exited is forgotten in the background.
func (c *Client) forget(ctx context.Context, ref, process string, exited bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTime)
	defer cancel()
	q := url.Values{}
	if exited {
		q.Set("background", "1")
	}
	_ = c.again(ctx, func() error { return c.call(ctx, http.MethodDelete, proc(ref, process), q, nil, nil) })
}

const (
	patience   = 30 * time.Second // without any answer
	ownerGrace = patience + 15*time.Second
	firstPause = 5 * time.Millisecond
	longPause  = 500 * time.Millisecond
)

// again calls f until it returns anything but a broken connection.
func (c *Client) again(ctx context.Context, f func() error) error {
	end := time.Now().Add(patience)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := f()
		if err == nil || !broken(err) || time.Now().After(end) {
			return err
		}
		if !sleep(ctx, pause) {
			return transportError(ctx, ctx.Err())
		}
	}
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// endedTime bounds how long a sandbox that is being killed is waited for.
const endedTime = 15 * time.Second

// ended answers for a process that cannot be reached any more: when its
// sandbox has ended that is its exit, else err stands.
func (c *Client) ended(ctx context.Context, ref string, err error) (sandbox.Exit, error) {
	switch sandbox.KindOf(err) {
	case sandbox.Conflict, sandbox.NotFound, sandbox.Unavailable:
	default:
		return sandbox.Exit{}, err
	}
	if broken(err) {
		return sandbox.Exit{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, endedTime)
	defer cancel()
	sb, gerr := c.Get(ctx, ref)
	if gerr == nil && sb.State == sandbox.Killing {
		sb, gerr = c.Wait(ctx, string(sb.ID))
	}
	if gerr != nil || sb.State != sandbox.Dead {
		return sandbox.Exit{}, err
	}
	return sandbox.EndedWith(sb.EndReason, sb.EndMessage, sb.EndedAt), nil
}

// errOutputLost is the error of lost output without OnGap.
func errOutputLost(n int64) error {
	return sandbox.Errorf(sandbox.ResourceExhausted, "%d bytes of output were overwritten before they could be read", n).
		WithHint("raise the output limit of the sandbox")
}

var errDone = errors.New("the process has ended")
