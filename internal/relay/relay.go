// Package relay moves a stream from one unix socket to another through a pipe,
// so that the kernel hands pages over and this process copies nothing
// (splice(2)).
//
// Sockets come as Go's network poller knows them. For more than a little, they
// are taken out of it: one thread then waits in the kernel for either end,
// which costs a fraction of what waking goroutines does.
package relay

import (
	"context"
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Source is the rest of a stream that comes from a socket.
type Source struct {
	Conn   *net.UnixConn
	Ahead  []byte // has been read from Conn already
	Length int64  // of Ahead and what follows, -1: to the end of Conn
}

// Inflow is the body of a request that lies in its client's connection. It is
// moved with Send and cannot be read.
type Inflow struct{ Source }

// Read is not for an Inflow.
func (*Inflow) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close does nothing: the connection belongs to who made the Inflow.
func (*Inflow) Close() error { return nil }

// ahead returns what of the source has been read, and how much is still to
// come, -1 when that is not known.
func (s *Source) ahead() ([]byte, int64) {
	if s.Length < 0 {
		return s.Ahead, -1
	}
	n := min(int64(len(s.Ahead)), s.Length)
	return s.Ahead[:n], s.Length - n
}

// Send writes head to dst and then moves all of s. It returns
// [io.ErrUnexpectedEOF] when s is shorter than it said, and an error that wraps
// EPIPE when dst takes no more. Both connections live on; when ctx ends, or dst
// hangs up, both are shut down.
func (s *Source) Send(ctx context.Context, dst *net.UnixConn, head []byte) error {
	ahead, left := s.ahead()
	if first := append(head, ahead...); len(first) > 0 {
		if _, err := dst.Write(first); err != nil {
			return err
		}
	}
	if left == 0 {
		return nil
	}
	return linked(ctx, dst, s.Conn, func(l *link) error { return l.move(left) })
}

// Frames tells a stream's frames apart from outside. It is told of every byte,
// in order, by Feed or by Skip.
type Frames interface {
	// Feed takes the next bytes.
	Feed(p []byte) error
	// Bulk returns how many bytes come next that need not be looked at.
	Bulk() int64
	// Skip takes note that what Bulk told of has gone by.
	Skip() error
	// Ended reports whether the stream is over, whatever may follow.
	Ended() bool
}

const (
	// lookAhead is what is read to see the frames that come: many small ones,
	// or the head of a large one and little of its payload.
	lookAhead = 4 << 10
	// leastMoved is the payload from which on moving is cheaper than copying.
	leastMoved = 16 << 10
)

// SendFrames writes head to dst and then moves the frames of s as they come, up
// to the end of f, looking at every byte that is not bulk. It is else as Send.
func (s *Source) SendFrames(ctx context.Context, dst *net.UnixConn, head []byte, f Frames) error {
	if err := f.Feed(s.Ahead); err != nil {
		return err
	}
	if _, err := dst.Write(append(head, s.Ahead...)); err != nil {
		return err
	}
	if err := s.little(ctx, dst, f); err != nil || f.Ended() {
		return err
	}
	return linked(ctx, dst, s.Conn, func(l *link) error { return l.frames(f) })
}

// frames moves frames up to the end of f.
func (l *link) frames(f Frames) error {
	buf := make([]byte, lookAhead)
	for !f.Ended() {
		if n := f.Bulk(); n >= leastMoved {
			if err := l.move(n); err != nil {
				return err
			}
			if err := f.Skip(); err != nil {
				return err
			}
			continue
		}
		n, err := l.read(buf)
		if err := pass(f, buf[:n], l.write); err != nil {
			return err
		}
		if err != nil {
			return broken(f, err)
		}
	}
	return nil
}

// little copies until a large payload comes: most streams are short, or slow.
func (s *Source) little(ctx context.Context, dst *net.UnixConn, f Frames) error {
	hangUp := func() { s.Conn.Close() }
	defer context.AfterFunc(ctx, hangUp)()
	w, err := watch(dst, hangUp)
	if err != nil {
		return err
	}
	defer w.end()
	buf := make([]byte, lookAhead)
	for !f.Ended() && f.Bulk() < leastMoved {
		n, err := s.Conn.Read(buf)
		if err := pass(f, buf[:n], dst.Write); err != nil {
			return err
		}
		if err != nil {
			return broken(f, err)
		}
	}
	return nil
}

// pass shows p to f and writes it.
func pass(f Frames, p []byte, write func([]byte) (int, error)) error {
	if len(p) == 0 {
		return nil
	}
	if err := f.Feed(p); err != nil {
		return err
	}
	_, err := write(p)
	return err
}

// broken is what a read's error means to a stream.
func broken(f Frames, err error) error {
	switch {
	case f.Ended():
		return nil
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}

// watcher waits for the end of a client that has nothing more to say.
type watcher struct {
	conn *net.UnixConn
	done chan struct{}
}

// watch calls gone when conn has ended. Until end is called nobody else reads
// conn.
func watch(conn *net.UnixConn, gone func()) (*watcher, error) {
	if err := conn.SetReadDeadline(noDeadline); err != nil {
		return nil, err
	}
	w := &watcher{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		var b [64]byte
		for {
			if _, err := conn.Read(b[:]); err != nil {
				if !errors.Is(err, errDeadline) {
					gone()
				}
				return
			}
		}
	}()
	return w, nil
}

// end stops the watch.
func (w *watcher) end() {
	_ = w.conn.SetReadDeadline(longAgo) // fails when it has ended
	<-w.done
	_ = w.conn.SetReadDeadline(noDeadline)
}

// HungUp reports whether err says that the destination takes no more.
func HungUp(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }
