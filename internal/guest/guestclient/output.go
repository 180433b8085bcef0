package guestclient

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// ackEvery is how many bytes are taken before they are acknowledged. It is
// well below the guest's window, so that the program need not wait for us.
const ackEvery = 512 << 10

// Output is an attached reader of one process. One goroutine calls Next; Close
// may be called from any.
type Output struct {
	r     *wire.OutputReader
	body  io.ReadCloser
	acker *acker
	ctx   context.Context
}

// Attach streams the output of a process from the given offsets on. What Next
// has returned is acknowledged when Next is called again; ctx bounds the
// stream.
func (c *Client) Attach(ctx context.Context, id string, stdout, stderr int64) (*Output, error) {
	resp, err := c.open(ctx, call{
		method: http.MethodGet, path: "/processes/" + url.PathEscape(id) + "/output",
		query: url.Values{"stdout": {strconv.FormatInt(stdout, 10)}, "stderr": {strconv.FormatInt(stderr, 10)}},
	})
	if err != nil {
		return nil, err
	}
	a := &acker{c: c, id: id, ctx: ctx, sent: wire.Ack{Stdout: stdout, Stderr: stderr}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go a.run()
	return &Output{r: wire.NewOutputReader(resp.Body, stdout, stderr), body: resp.Body, acker: a, ctx: ctx}, nil
}

// Next returns the next frame. After the exit frame it returns io.EOF.
// Keepalives are returned as such. Any other error is a [*sandbox.Error]:
// Unavailable when the stream broke, so that attaching again at Offsets may go
// on; Internal when the guest sent what no honest guest sends.
func (o *Output) Next() (wire.Event, error) {
	stdout, stderr := o.r.Offsets()
	o.acker.note(wire.Ack{Stdout: stdout, Stderr: stderr}, false)
	e, err := o.r.Next()
	switch {
	case err == nil:
		if e.Exit != nil {
			o.acker.note(wire.Ack{Stdout: stdout, Stderr: stderr}, true)
		}
		return e, nil
	case err == io.EOF:
		return e, err
	case o.ctx.Err() != nil:
		return e, transportError(o.ctx, err)
	case !isWire(err):
		return e, sandbox.Errorf(sandbox.Unavailable, "the stream of output broke").WithCause(err)
	}
	return e, sandbox.Errorf(sandbox.Internal, "the sandbox sent output that the protocol does not allow").WithCause(err)
}

// isWire tells errors of package wire from those of the transport.
func isWire(err error) bool { return strings.HasPrefix(err.Error(), "wire: ") }

// Offsets returns how far the output has been read.
func (o *Output) Offsets() (stdout, stderr int64) { return o.r.Offsets() }

// Close ends the stream, having acknowledged what was taken. The process goes
// on.
func (o *Output) Close() error {
	err := o.body.Close()
	o.acker.stop()
	return err
}

// CopyTo writes the output to stdout and stderr until the process has ended
// and returns how. It returns the number of bytes that were lost because
// nobody read them in time.
func (o *Output) CopyTo(stdout, stderr io.Writer) (exit sandbox.Exit, lost int64, err error) {
	for {
		e, err := o.Next()
		if err != nil {
			return exit, lost, err
		}
		switch e.Type {
		case wire.FrameData:
			w := stdout
			if e.Stream == wire.Stderr {
				w = stderr
			}
			if _, err := w.Write(e.Data); err != nil {
				return exit, lost, sandbox.Errorf(sandbox.Canceled, "the output could not be written: %w", err)
			}
		case wire.FrameGap:
			lost += e.Lost
		case wire.FrameExit:
			return *e.Exit, lost, nil
		}
	}
}

// acker sends acknowledgements, one at a time, beside the reading.
type acker struct {
	c    *Client
	id   string
	ctx  context.Context
	wake chan struct{}
	done chan struct{}

	mu      sync.Mutex
	have    wire.Ack
	sent    wire.Ack
	stopped bool
}

// note tells how far the caller has come; the guest is told when that is worth
// a request, or at once with now.
func (a *acker) note(have wire.Ack, now bool) {
	a.mu.Lock()
	a.have = have
	due := have.Stdout-a.sent.Stdout+have.Stderr-a.sent.Stderr >= ackEvery || now && have != a.sent
	a.mu.Unlock()
	if due {
		a.poke()
	}
}

func (a *acker) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *acker) run() {
	defer close(a.done)
	for {
		select {
		case <-a.wake:
		case <-a.ctx.Done():
		}
		a.mu.Lock()
		have, old, stopped := a.have, a.sent, a.stopped
		a.sent = have
		a.mu.Unlock()
		if have != old {
			a.send(have)
		}
		if stopped || a.ctx.Err() != nil {
			return
		}
	}
}

// send tells the guest. A failure shows in the stream itself.
func (a *acker) send(have wire.Ack) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), DefaultTimeout)
	defer cancel()
	_ = a.c.Ack(ctx, a.id, have)
}

// stop acknowledges what is left and waits.
func (a *acker) stop() {
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	a.poke()
	<-a.done
}
