package channel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// A seam is where one HTTP/2 connection on a stream ends and the next begins.
// Before a checkpoint nothing may be under way in either direction, and the
// guest's memory must not hold one half of a conversation whose other half is
// with a host that will be gone. So the host names some random bytes in a
// request, ends HTTP/2 after the answer, and sends these bytes; the guest ends
// HTTP/2 where they come and sends them back. What either side had still sent
// before is thrown away by the other.

// SeamLen is the length of a seam.
const SeamLen = 32

// wakePause is how long a call that has been woken gets to return.
const wakePause = 50 * time.Microsecond

// maxLeft bounds what a host reads while it looks for the guest's seam.
const maxLeft = 16 << 20

type seamKey struct{}

// seam is what a guest's connection looks for; nil: nothing.
type seam struct{ bytes atomic.Pointer[[]byte] }

// ExpectSeam has the connection that the request with context ctx came over end
// where seam comes. The host sends it after the answer to the request. It
// reports whether there is such a connection and seam has the right length.
func ExpectSeam(ctx context.Context, seam []byte) bool {
	b, ok := ctx.Value(seamKey{}).(*bufConn)
	if !ok || len(seam) != SeamLen {
		return false
	}
	s := bytes.Clone(seam)
	b.seam.bytes.Store(&s)
	return true
}

// beforeSeam returns how many bytes of buf stand before the seam, or may be
// passed on since the seam cannot begin in them; io.EOF at the seam itself.
func (b *bufConn) beforeSeam() (int, error) {
	s := b.seam.bytes.Load()
	if s == nil {
		return len(b.buf), nil
	}
	for {
		switch i := bytes.Index(b.buf, *s); {
		case i > 0:
			return i, nil
		case i == 0:
			rest := bytes.Clone(b.buf[len(*s):])
			b.release()
			b.buf = rest
			b.ended.Store(true)
			b.kept.Store(true)
			return 0, io.EOF
		}
		begun := prefixAtEnd(b.buf, *s)
		if begun < len(b.buf) {
			return len(b.buf) - begun, nil
		}
		// All of it may be the beginning of the seam.
		head := bytes.Clone(b.buf)
		b.release()
		if err := b.refill(); err != nil {
			return 0, err
		}
		all := append(head, b.buf...)
		b.release()
		b.buf = all
	}
}

// prefixAtEnd returns the length of the longest end of p with which s begins.
func prefixAtEnd(p, s []byte) int {
	for n := min(len(p), len(s)-1); n > 0; n-- {
		if bytes.HasPrefix(s, p[len(p)-n:]) {
			return n
		}
	}
	return 0
}

// cross sends the seam back and returns what has been read behind it. Nobody
// else uses the connection any more.
func (b *bufConn) cross() (ahead []byte, err error) {
	b.writeMu.Lock()
	defer b.writeMu.Unlock()
	if _, err := b.Conn.Write(*b.seam.bytes.Load()); err != nil {
		return nil, err
	}
	return b.buf, nil
}

// Split ends HTTP/2 on the channel and returns its connection with nothing
// under way in either direction. The guest has been told of seam and has
// answered, see [ExpectSeam]. Requests that are under way fail. When Split
// fails, the connection is closed and the channel is at its end.
func (h *Host) Split(ctx context.Context, seam []byte) (net.Conn, error) {
	b := h.conn
	if len(seam) != SeamLen {
		return nil, sandbox.Errorf(sandbox.Internal, "a seam of %d bytes", len(seam))
	}
	b.ended.Store(true)
	b.kept.Store(true)
	conn := b.Conn
	for _, mu := range []*sync.Mutex{&b.readMu, &b.writeMu} {
		// A call that is under way is woken; it may just be setting a deadline
		// of its own. None begins after it.
		for !mu.TryLock() {
			conn.SetDeadline(time.Unix(1, 0))
			time.Sleep(wakePause)
		}
		mu.Unlock()
	}
	h.cc.Close()
	b.Close()

	conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	_, err := conn.Write(seam)
	if err == nil {
		err = readTo(conn, seam)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, ctxError(ctx)
		}
		return nil, sandbox.Errorf(sandbox.Unavailable, "the guest did not let go of its channel").WithCause(err)
	}
	return conn, nil
}

// Kept reports whether the channel has ended by Split.
func (h *Host) Kept() bool { return h.conn.kept.Load() }

// readTo reads up to the end of seam and not a byte further.
func readTo(conn io.Reader, seam []byte) error {
	window := make([]byte, 0, len(seam))
	for left := maxLeft; left > 0; {
		// So many bytes are missing from the seam at least.
		n, err := conn.Read(window[len(window):cap(window)])
		left -= n
		window = window[:len(window)+n]
		if bytes.Equal(window, seam) {
			return nil
		}
		if err != nil {
			return err
		}
		keep := prefixAtEnd(window, seam)
		copy(window, window[len(window)-keep:])
		window = window[:keep]
	}
	return errors.New("too much comes before the seam")
}
