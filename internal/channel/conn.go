package channel

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	idleBuffer = 4 << 10
	fullBuffer = 512 << 10
)

var buffers = sync.Pool{New: func() any { return new([fullBuffer]byte) }}

// bufConn is a net.Conn that reads ahead: few bytes while little comes, up to
// 512 KiB at a time once a read has filled the small buffer. One goroutine
// reads; writes may overlap with it.
type bufConn struct {
	net.Conn
	small [idleBuffer]byte
	big   *[fullBuffer]byte
	buf   []byte // what has been read ahead
	full  bool   // the last read filled its buffer, so more is likely

	watch   *watch // nil in the guest
	traffic *Traffic

	once sync.Once
	done chan struct{}
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

func newConn(c net.Conn) *bufConn { return &bufConn{Conn: c, done: make(chan struct{})} }

func newWatchedConn(c net.Conn, role Role, l Limits) *bufConn {
	b := newConn(c)
	b.watch = &watch{inspector: NewInspector(role, l), limits: l}
	b.traffic = l.Traffic
	return b
}

// Close closes the connection; it is idempotent.
func (b *bufConn) Close() error {
	err := b.Conn.Close()
	b.once.Do(func() { close(b.done) })
	return err
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
	if len(b.buf) == 0 {
		if len(p) >= fullBuffer/2 {
			return b.fill(p)
		}
		if err := b.refill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.buf)
	b.buf = b.buf[n:]
	if len(b.buf) == 0 && !b.full {
		b.release()
	}
	return n, nil
}

func (b *bufConn) refill() error {
	target := b.small[:]
	if b.full {
		if b.big == nil {
			b.big = buffers.Get().(*[fullBuffer]byte)
		}
		target = b.big[:]
	}
	n, err := b.fill(target)
	b.buf = target[:n]
	b.full = n >= idleBuffer
	if err != nil {
		b.buf = nil
		b.release()
	}
	return err
}

func (b *bufConn) release() {
	if b.big != nil {
		buffers.Put(b.big)
		b.big = nil
	}
}

// fill reads once from the connection into p and inspects what came.
func (b *bufConn) fill(p []byte) (int, error) {
	if b.watch != nil {
		if err := b.before(); err != nil {
			return 0, err
		}
	}
	n, err := b.Conn.Read(p)
	if b.traffic != nil {
		b.traffic.Read.Add(int64(n))
	}
	if n > 0 && b.watch != nil {
		b.watch.inspector.Grant(b.watch.granted.Load())
		if ferr := b.watch.inspector.Feed(time.Now(), p[:n]); ferr != nil {
			return 0, b.fail(ferr.(*Fault))
		}
	}
	if err == nil || n > 0 {
		return n, nil
	}
	if b.watch != nil && errors.Is(err, os.ErrDeadlineExceeded) && !b.watch.deadline.IsZero() {
		return 0, b.fail(faultf("half-frame", "a frame did not end within %v", b.watch.limits.FrameTime))
	}
	b.Close()
	return 0, err
}

// before waits out a delay and sets the deadline of a frame that has begun.
func (b *bufConn) before() error {
	w := b.watch
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
	n, err := b.Conn.Write(p)
	if b.traffic != nil {
		b.traffic.Written.Add(int64(n))
	}
	return n, err
}
