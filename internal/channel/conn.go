package channel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A guest pays for each system call what copying 100 KiB costs, so it reads
// ahead as much as it can. A host pays little for them and more for the copy:
// with a small buffer the body of a frame is read to where it belongs.
const (
	hostBuffer   = 32 << 10
	guestBuffer  = 512 << 10
	socketBuffer = 1 << 20
	plainBuffer  = 4 << 10 // for connections that cannot be waited for without a buffer
)

var (
	hostBuffers  = sync.Pool{New: func() any { b := make([]byte, hostBuffer); return &b }}
	guestBuffers = sync.Pool{New: func() any { b := make([]byte, guestBuffer); return &b }}
)

// bufConn is a net.Conn that reads ahead. While it waits for bytes, and while
// it has none, it holds no buffer. One goroutine reads; writes may overlap
// with it.
type bufConn struct {
	net.Conn
	raw    syscall.RawConn // nil when the connection has no descriptor
	pool   *sync.Pool
	direct int     // reads of at least so many bytes go past the buffer
	held   *[]byte // what buf points into, to be given back to pool
	plain  []byte  // the buffer of a connection without raw
	buf    []byte  // what has been read ahead

	watch   *watch // nil in the guest
	traffic *Traffic

	ended atomic.Bool // either side has ended the connection, or it broke
	kept  atomic.Bool // HTTP/2 has ended on it; the connection itself goes on
	once  sync.Once
	done  chan struct{}

	readMu, writeMu sync.Mutex // held by a call under way
	seam            seam       // nil outside of the guest
}

// watch is the host's guard over what is read.
type watch struct {
	inspector *Inspector
	limits    Limits
	granted   atomic.Int64 // requests begun by the host
	fault     atomic.Pointer[Fault]
	deadline  time.Time // of the frame that has begun, zero when none
	begun     int64     // number of that frame
}

func newConn(c net.Conn, pool *sync.Pool) *bufConn {
	b := &bufConn{Conn: c, pool: pool, direct: hostBuffer, done: make(chan struct{})}
	if pool == &guestBuffers {
		b.direct = guestBuffer
	}
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			b.raw = raw
		}
	}
	if pool == &hostBuffers && b.raw != nil {
		b.raw.Control(enlarge) // a connection that is no socket stays as it is
	}
	return b
}

// enlarge lets a socket hold more of what is written to it: each read of the
// guest's then brings more. The guest's end is the driver's to enlarge.
func enlarge(fd uintptr) {
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}
}

func newWatchedConn(c net.Conn, role Role, l Limits) *bufConn {
	b := newConn(c, &hostBuffers)
	b.watch = &watch{inspector: NewInspector(role, l), limits: l}
	b.traffic = l.Traffic
	return b
}

// Close closes the connection; it is idempotent. On a watched connection that
// neither side has ended, it is HTTP/2 that closes it, for a breach of its
// rules: a fault.
func (b *bufConn) Close() error {
	b.once.Do(func() {
		if b.watch != nil && !b.ended.Load() {
			b.watch.fault.CompareAndSwap(nil, faultf("protocol", "the guest broke the rules of HTTP/2"))
		}
		close(b.done)
	})
	if b.kept.Load() {
		return nil
	}
	return b.Conn.Close()
}

// end closes the connection for a reason that is no fault.
func (b *bufConn) end() error {
	b.ended.Store(true)
	return b.Close()
}

func (b *bufConn) fail(f *Fault) error {
	b.watch.fault.CompareAndSwap(nil, f)
	b.Close()
	return f
}

func (b *bufConn) fault() error {
	if b.watch != nil {
		if f := b.watch.fault.Load(); f != nil {
			return f
		}
	}
	return nil
}

// Read returns bytes that have passed the inspector.
func (b *bufConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.readMu.Lock()
	defer b.readMu.Unlock()
	if b.kept.Load() {
		return 0, net.ErrClosed
	}
	if len(b.buf) == 0 {
		if len(p) >= b.direct {
			return b.inspected(p, func() (int, error) { return b.Conn.Read(p) })
		}
		if err := b.refill(); err != nil {
			return 0, err
		}
	}
	ready, err := b.beforeSeam()
	if err != nil {
		return 0, err
	}
	n := copy(p, b.buf[:ready])
	b.buf = b.buf[n:]
	if len(b.buf) == 0 {
		b.release()
	}
	return n, nil
}

func (b *bufConn) release() {
	if b.held != nil {
		b.pool.Put(b.held)
		b.held = nil
	}
}

// refill reads ahead into a buffer that is taken when there is something to
// read.
func (b *bufConn) refill() error {
	if b.raw == nil {
		if b.plain == nil {
			b.plain = make([]byte, plainBuffer)
		}
		n, err := b.inspected(b.plain, func() (int, error) { return b.Conn.Read(b.plain) })
		b.buf = b.plain[:n]
		return err
	}
	if err := b.prepare(); err != nil {
		return err
	}
	var n int
	var rerr error
	err := b.raw.Read(func(fd uintptr) bool {
		b.held = b.pool.Get().(*[]byte)
		n, rerr = readFD(int(fd), *b.held)
		if rerr == unix.EAGAIN {
			b.release()
			return false
		}
		return true
	})
	switch {
	case err != nil:
		n = 0
	case rerr != nil:
		err = os.NewSyscallError("read", rerr)
	case n == 0:
		err = io.EOF
	}
	if n, err = b.check(*b.view(), n, err); err != nil {
		b.release()
		return err
	}
	b.buf = (*b.held)[:n]
	return nil
}

// view returns the held buffer, or an empty one.
func (b *bufConn) view() *[]byte {
	if b.held == nil {
		return new([]byte)
	}
	return b.held
}

func readFD(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// inspected reads once into p and inspects what came.
func (b *bufConn) inspected(p []byte, read func() (int, error)) (int, error) {
	if err := b.prepare(); err != nil {
		return 0, err
	}
	n, err := read()
	return b.check(p, n, err)
}

// check counts and inspects n bytes of p that a read has brought with err.
func (b *bufConn) check(p []byte, n int, err error) (int, error) {
	if b.traffic != nil {
		b.traffic.Read.Add(int64(n))
	}
	if n > 0 && b.watch != nil {
		b.watch.inspector.Grant(b.watch.granted.Load())
		var f *Fault
		if errors.As(b.watch.inspector.Feed(time.Now(), p[:n]), &f) {
			return 0, b.fail(f)
		}
	}
	if err == nil || n > 0 {
		return n, nil
	}
	if b.watch != nil && errors.Is(err, os.ErrDeadlineExceeded) && !b.watch.deadline.IsZero() {
		return 0, b.fail(faultf("half-frame", "a frame did not end within %v", b.watch.limits.FrameTime))
	}
	b.end()
	return 0, err
}

// prepare waits out a delay and sets the deadline of a frame that has begun.
func (b *bufConn) prepare() error {
	w := b.watch
	if w == nil {
		return nil
	}
	if d := w.inspector.Delay(); d > time.Millisecond {
		if !b.sleep(d) {
			return net.ErrClosed
		}
	}
	partial, begun := w.inspector.Partial(), w.inspector.Begun()
	switch {
	case partial && (w.deadline.IsZero() || begun != w.begun):
		w.deadline, w.begun = time.Now().Add(w.limits.FrameTime), begun
	case !partial && !w.deadline.IsZero():
		w.deadline = time.Time{}
	default:
		return nil
	}
	return b.Conn.SetReadDeadline(w.deadline)
}

func (b *bufConn) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.done:
		return false
	}
}

// Write writes all of p and counts it.
func (b *bufConn) Write(p []byte) (int, error) {
	b.writeMu.Lock()
	defer b.writeMu.Unlock()
	if b.kept.Load() {
		return 0, net.ErrClosed
	}
	n, err := b.Conn.Write(p)
	if b.traffic != nil {
		b.traffic.Written.Add(int64(n))
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		b.ended.Store(true)
	}
	return n, err
}
