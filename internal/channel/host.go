package channel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/belljar-sh/belljar/sandbox"
)

// headerTable bounds the tables of header compression, per direction.
const headerTable = 4 << 10

// Host is the host's end of a down channel: a client of HTTP/2 over one
// connection that never dials another. It is safe for concurrent use.
type Host struct {
	conn  *bufConn
	cc    *http2.ClientConn
	slots chan struct{}
	open  atomic.Int64

	readers *readers
}

// DialHost starts HTTP/2 as a client on conn, which it owns from then on. It
// does not wait for the guest.
func DialHost(conn net.Conn, l Limits) (*Host, error) {
	l = l.withDefaults()
	b := newWatchedConn(conn, GuestServes, l)
	t, err := transport(l)
	if err != nil {
		b.end()
		return nil, err
	}
	cc, err := t.NewClientConn(b)
	if err != nil {
		b.Close()
		return nil, sandbox.Errorf(sandbox.Unavailable, "the channel to the sandbox broke as it was opened: %w", err)
	}
	return &Host{conn: b, cc: cc, slots: make(chan struct{}, l.Streams), readers: newReaders(l, b.done)}, nil
}

func transport(l Limits) (*http2.Transport, error) {
	t, err := http2.ConfigureTransports(&http.Transport{
		DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: l.BufferedBytes,
			MaxReceiveBufferPerStream:     l.StreamBytes,
		},
	})
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "HTTP/2 could not be set up: %w", err)
	}
	t.AllowHTTP = true
	t.DisableCompression = true
	t.StrictMaxConcurrentStreams = true
	t.MaxReadFrameSize = FrameBytes
	t.MaxHeaderListSize = uint32(l.HeaderBytes)
	t.MaxDecoderHeaderTableSize = headerTable
	t.MaxEncoderHeaderTableSize = headerTable
	t.WriteByteTimeout = l.WriteTime
	return t, nil
}

// RoundTrip sends one request to the guest. It waits a while for a free stream.
// Errors are [*sandbox.Error]; ResourceExhausted when none became free,
// Unavailable with a [*Fault] as cause when the guest broke the channel.
func (h *Host) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := h.enter(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	h.readers.relieve(time.Now())
	h.conn.watch.granted.Add(1)
	h.open.Add(1)
	resp, err := h.cc.RoundTrip(r)
	if err != nil {
		h.leave()
		if r.Context().Err() != nil {
			return nil, ctxError(r.Context())
		}
		return nil, h.gone(err)
	}
	h.wrap(resp)
	return resp, nil
}

const (
	// slotTime is how long a request waits for a stream.
	slotTime = 10 * time.Second
	// slotLook is how often it looks meanwhile whether one can be given up.
	slotLook = 500 * time.Millisecond
)

// enter takes one of the streams.
func (h *Host) enter(ctx context.Context) error {
	select {
	case h.slots <- struct{}{}:
		return nil
	default:
	}
	look, patience := time.NewTicker(slotLook), time.NewTimer(slotTime)
	defer look.Stop()
	defer patience.Stop()
	for {
		h.readers.relieve(time.Now())
		select {
		case h.slots <- struct{}{}:
			return nil
		case <-look.C:
		case <-patience.C:
			return sandbox.Errorf(sandbox.ResourceExhausted, "too many requests to this sandbox are under way: %d", cap(h.slots)).
				WithHint("end some, or read what they answer, and try again")
		case <-ctx.Done():
			return ctxError(ctx)
		case <-h.conn.done:
			return h.gone(net.ErrClosed)
		}
	}
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

func (h *Host) leave() {
	h.open.Add(-1)
	<-h.slots
}

// Open returns the number of requests whose responses have not been closed.
func (h *Host) Open() int { return int(h.open.Load()) }

// Close ends the channel and every request on it.
func (h *Host) Close() error {
	err := h.conn.end()
	h.cc.Close()
	return err
}

// Done is closed when the channel has ended, for whatever reason.
func (h *Host) Done() <-chan struct{} { return h.conn.done }

// Fault returns the [*Fault] that ended the channel, nil when there was none.
func (h *Host) Fault() error { return h.conn.fault() }

func (h *Host) gone(err error) error {
	if f := h.conn.fault(); f != nil {
		err = f
	}
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox does not answer: its channel has ended").WithCause(err)
}

func ctxError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the sandbox did not answer in time").WithCause(ctx.Err())
	}
	return sandbox.Errorf(sandbox.Canceled, "the request was given up").WithCause(ctx.Err())
}
