package channel

import (
	"context"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"

	"github.com/belljar-sh/belljar/sandbox"
)

// localLimits are for programs of Belljar among themselves. The window of the
// connection is out of reach on purpose: one stream that is not read must hold
// up no other; windows of streams bound memory.
func localLimits() Limits {
	return Limits{
		Streams:       8192,
		BufferedBytes: 1 << 30,
		StreamBytes:   1 << 20,
		HeaderBytes:   256 << 10,
		WriteTime:     365 * 24 * time.Hour, // the peer may be stopped in a debugger
	}.withDefaults()
}

// ServeLocal serves HTTP/2 to another program of Belljar until the connection
// ends or ctx is done, and waits for the handlers. It owns conn.
func ServeLocal(ctx context.Context, conn net.Conn, h http.Handler) error {
	l := localLimits()
	return serve(ctx, newConn(conn, &hostBuffers), server(l), l, h)
}

// Local is a connection to another program of Belljar. It is safe for
// concurrent use.
type Local struct {
	conn *bufConn
	cc   *http2.ClientConn
}

// DialLocal starts HTTP/2 as a client on conn, which it owns from then on.
func DialLocal(conn net.Conn) (*Local, error) {
	b, cc, err := dial(newConn(conn, &hostBuffers), localLimits())
	if err != nil {
		return nil, err
	}
	return &Local{conn: b, cc: cc}, nil
}

// RoundTrip sends one request. Errors are [*sandbox.Error].
func (l *Local) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.cc.RoundTrip(r)
	if err == nil {
		return resp, nil
	}
	if r.Context().Err() != nil {
		return nil, ctxError(r.Context())
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "the connection ended before the answer came").WithCause(err)
}

// Close ends the connection and every request on it.
func (l *Local) Close() error {
	err := l.conn.Close()
	l.cc.Close()
	return err
}

// Done is closed when the connection has ended.
func (l *Local) Done() <-chan struct{} { return l.conn.done }

// dial starts an HTTP/2 client that trusts its peer.
func dial(b *bufConn, l Limits) (*bufConn, *http2.ClientConn, error) {
	t, err := transport(l)
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	cc, err := t.NewClientConn(b)
	if err != nil {
		b.Close()
		return nil, nil, sandbox.Errorf(sandbox.Unavailable, "the connection broke as it was opened: %w", err)
	}
	return b, cc, nil
}
