package channel

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// The guest trusts the host; its windows bound its own memory only.
func guestLimits() Limits {
	return Limits{
		Streams:       512,
		BufferedBytes: 8 << 20,
		StreamBytes:   2 << 20,
		HeaderBytes:   64 << 10,
		WriteTime:     365 * 24 * time.Hour, // the host may be stopped for long, in a checkpoint
	}.withDefaults()
}

// ServeGuest serves a down channel in the guest until it ends or ctx is done,
// and waits for the handlers. It owns conn. After a seam, which [ExpectSeam]
// tells of, it serves anew on the same connection.
func ServeGuest(ctx context.Context, conn net.Conn, h http.Handler) error {
	l := guestLimits()
	var ahead []byte
	for again := false; ; again = true {
		b := newConn(conn, &guestBuffers)
		b.buf = ahead
		// A server speaks first. Behind a seam the host may be another one than
		// before, and only what comes from it shows that it is there.
		if again && b.await() != nil {
			b.end()
			return nil
		}
		err := serve(context.WithValue(ctx, seamKey{}, b), b, server(l), l, h)
		if !b.kept.Load() {
			return err
		}
		if ahead, err = b.cross(); err != nil {
			conn.Close()
			return nil // the host has gone
		}
	}
}

// callGroup waits for handlers that a server has begun; x/net does not.
type callGroup struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (g *callGroup) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Add(1)
	}
	return !g.closed
}

func (g *callGroup) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.enter() {
			defer g.wg.Done()
			h.ServeHTTP(w, r)
		}
	})
}

func (g *callGroup) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}
