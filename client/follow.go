package client

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// follower carries the streams of one process across any number of
// connections.
type follower struct {
	c       *Client
	ref     string
	process string
	s       Streams

	fresh bool    // the process has had no input yet
	first *Output // the first connection, when it is made already

	out  [3]int64 // by StreamID: offset up to which output has been written
	lost int64
	ack  *acker
}

func (f *follower) run(ctx context.Context) (sandbox.Exit, error) {
	sub, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(errDone)

	f.ack = newAcker(func(stdout, stderr int64) error {
		return f.c.Ack(sub, f.ref, f.process, stdout, stderr)
	})
	wg.Go(func() { f.ack.run(sub) })
	wg.Go(func() { f.resize(sub) })
	wg.Go(func() { f.signals(sub) })
	if f.s.Stdin != nil {
		// A blocked Read of the caller's cannot be interrupted: not waited for.
		in := newInput(f.s.Stdin)
		go in.read(sub)
		wg.Go(func() { f.stdin(sub, in) })
	}

	exit, err := f.output(ctx)
	if err == nil && f.lost > 0 && f.s.OnGap == nil {
		err = errOutputLost(f.lost)
	}
	return exit, err
}

// output reads to the exit, attaching again when a connection breaks.
func (f *follower) output(ctx context.Context) (sandbox.Exit, error) {
	last, pause := time.Now(), firstPause
	for {
		exit, moved, err := f.attach(ctx)
		if err == nil || !broken(err) {
			if err != nil {
				return f.c.ended(ctx, f.ref, err)
			}
			return exit, nil
		}
		if moved {
			last, pause = time.Now(), firstPause
		}
		if time.Since(last) > patience {
			return exit, err
		}
		if !sleep(ctx, pause) {
			return exit, transportError(ctx, ctx.Err())
		}
		pause = min(2*pause, longPause)
	}
}

// attach reads one connection to its end; moved reports whether it was made.
func (f *follower) attach(ctx context.Context) (exit sandbox.Exit, moved bool, err error) {
	o := f.first
	if f.first = nil; o == nil {
		if o, err = f.c.Attach(ctx, f.ref, f.process, f.out[Stdout], f.out[Stderr]); err != nil {
			return exit, false, err
		}
	}
	defer o.Close()
	for {
		c, err := o.Next()
		if err != nil {
			return exit, true, err
		}
		if c.Kind == ChunkExit {
			return c.Exit, true, nil
		}
		if err := f.take(c); err != nil {
			return exit, true, err
		}
	}
}

// take writes one chunk and moves the offset on.
func (f *follower) take(c Chunk) error {
	at := &f.out[c.Stream]
	switch {
	case c.Offset > *at:
		return sandbox.Errorf(sandbox.Internal, "output stands at byte %d where %d was to follow", c.Offset, *at)
	case c.Kind == ChunkGap:
		n := c.Offset + c.Lost - *at
		if n <= 0 {
			return nil
		}
		*at += n
		f.lost += n
		if f.s.OnGap != nil {
			f.s.OnGap(c.Stream, n)
		}
		return nil
	}
	skip := *at - c.Offset
	if skip >= int64(len(c.Data)) {
		return nil
	}
	data := c.Data[skip:]
	w := f.s.Stdout
	if c.Stream == Stderr {
		w = f.s.Stderr
	}
	if w != nil {
		if _, err := w.Write(data); err != nil {
			return sandbox.Errorf(sandbox.Canceled, "the output cannot be written: %w", err)
		}
	}
	*at += int64(len(data))
	f.ack.advance(f.out[Stdout], f.out[Stderr])
	return nil
}

func (f *follower) resize(ctx context.Context) {
	forward(ctx, f.s.Resize, func(size PTYSize) error {
		return f.c.again(ctx, func() error { return f.c.Resize(ctx, f.ref, f.process, size) })
	})
}

func (f *follower) signals(ctx context.Context) {
	forward(ctx, f.s.Signals, func(sig int) error {
		return f.c.again(ctx, func() error { return f.c.Signal(ctx, f.ref, f.process, sig, false) })
	})
}

// forward passes what comes from ch on until ctx ends or ch is closed. An
// error is not reported: the process may just have exited.
func forward[T any](ctx context.Context, ch <-chan T, send func(T) error) {
	for ch != nil {
		select {
		case v, ok := <-ch:
			if !ok {
				return
			}
			_ = send(v)
		case <-ctx.Done():
			return
		}
	}
}

// stdin carries input by offset.
func (f *follower) stdin(ctx context.Context, in *input) {
	at := int64(-1)
	if f.fresh {
		at = 0
	}
	for {
		b, ok := in.next(ctx)
		if !ok {
			return
		}
		var err error
		if at < 0 {
			if at, err = f.progress(ctx); err != nil {
				return
			}
		}
		if at, err = f.write(ctx, at, b.data, b.eof); err != nil || b.eof {
			return // an error: the process has closed its input or has exited
		}
	}
}

// write sends data, the input from offset at on, and returns the offset after
// it. What a broken connection left undecided is settled by asking the process
// how much it has had.
func (f *follower) write(ctx context.Context, at int64, data []byte, eof bool) (int64, error) {
	end := at + int64(len(data))
	for {
		n, err := f.c.Stdin(ctx, f.ref, f.process, at, bytes.NewReader(data[len(data)-int(end-at):]), eof)
		resend := broken(err)
		if resend {
			n, err = f.progress(ctx)
		}
		switch {
		case err != nil:
			return at, err
		case n < at || n > end:
			return at, sandbox.Errorf(sandbox.Internal, "the process has had %d bytes of input where %d to %d can be", n, at, end)
		case n == end && !resend:
			return end, nil
		case n == at && !sleep(ctx, firstPause):
			return at, transportError(ctx, ctx.Err())
		}
		at = n
	}
}

// progress asks how many bytes of input the process has had.
func (f *follower) progress(ctx context.Context) (n int64, err error) {
	err = f.c.again(ctx, func() error {
		p, err := f.c.Process(ctx, f.ref, f.process)
		n = p.Stdin
		return err
	})
	return n, err
}

// acker sends the newest offsets, many chunks at a time: at once when much has
// come, else when nothing more comes for a moment, as is the case when the
// process is held back.
type acker struct {
	send func(stdout, stderr int64) error
	wake chan struct{}

	mu             sync.Mutex
	stdout, stderr int64
}

const (
	ackBytes = 4 << 20
	ackDelay = 20 * time.Millisecond
)

func newAcker(send func(stdout, stderr int64) error) *acker {
	return &acker{send: send, wake: make(chan struct{}, 1)}
}

func (a *acker) advance(stdout, stderr int64) {
	a.mu.Lock()
	a.stdout, a.stderr = stdout, stderr
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *acker) newest() (int64, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stdout, a.stderr
}

func (a *acker) run(ctx context.Context) {
	var done int64
	quiet := time.NewTimer(ackDelay)
	defer quiet.Stop()
	for {
		select {
		case <-a.wake:
			stdout, stderr := a.newest()
			if stdout+stderr-done < ackBytes {
				quiet.Reset(ackDelay)
				continue
			}
		case <-quiet.C:
		case <-ctx.Done():
			return
		}
		stdout, stderr := a.newest()
		if stdout+stderr == done {
			continue
		}
		if err := a.send(stdout, stderr); err == nil {
			done = stdout + stderr
		} else if broken(err) {
			quiet.Reset(longPause)
		}
	}
}
