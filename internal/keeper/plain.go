package keeper

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// plain serves HTTP/1.1 on connections that arrive one by one: a connection
// for each request under way to a guest. It copies bodies once where HTTP/2
// does three times, on either side, and no stream waits for another.
type plain struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex
	over  bool // no handler may begin
	calls sync.WaitGroup
}

func newPlain() *plain {
	return &plain{conns: make(chan net.Conn), done: make(chan struct{})}
}

// run serves until ctx is done, and waits for the handlers.
func (p *plain) run(ctx context.Context, h http.Handler) {
	srv := &http.Server{
		Handler:           p.counted(h),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	srv.Serve(p)
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.calls.Wait()
}

// counted lets run wait for handlers, which net/http does not on Close.
func (p *plain) counted(h http.Handler) http.Handler {
	begin := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.over {
			p.calls.Add(1)
		}
		return !p.over
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if begin() {
			defer p.calls.Done()
			h.ServeHTTP(w, r)
		}
	})
}

// serve hands a connection over and returns when it has ended.
func (p *plain) serve(ctx context.Context, c *net.UnixConn) {
	w := &watchedConn{UnixConn: c, closed: make(chan struct{})}
	select {
	case p.conns <- w:
		<-w.closed
	case <-ctx.Done():
	}
}

// Accept implements net.Listener.
func (p *plain) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *plain) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr implements net.Listener.
func (p *plain) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// watchedConn tells when it has been closed.
type watchedConn struct {
	*net.UnixConn
	once   sync.Once
	closed chan struct{}
}

// Close closes the connection.
func (w *watchedConn) Close() error {
	err := w.UnixConn.Close()
	w.once.Do(func() { close(w.closed) })
	return err
}

// speaksHTTP2 looks at the first bytes of a connection without taking them.
func speaksHTTP2(c *net.UnixConn) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var b [3]byte
	var n int
	var perr error
	err = raw.Read(func(fd uintptr) bool {
		n, _, perr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
		return perr != unix.EAGAIN
	})
	if err == nil {
		err = perr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return string(b[:n]) == "PRI", err
}
