package relay

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBytes is what a pipe is asked to hold; an ordinary user may get less.
const pipeBytes = 1 << 20

var (
	noDeadline  = time.Time{}
	longAgo     = time.Unix(1, 0)
	errDeadline = os.ErrDeadlineExceeded
)

// link is a pipe between two sockets, with descriptors of its own that no
// poller knows. It is for one goroutine, whose thread it blocks.
type link struct {
	dst, src int
	r, w     int // of the pipe, which is empty between two calls
	size     int
	stop     func() bool

	mu     sync.Mutex
	closed bool
}

// newLink opens a link. When ctx ends its sockets are shut down.
func newLink(ctx context.Context, dst, src *net.UnixConn) (l *link, err error) {
	l = &link{dst: -1, src: -1, r: -1, w: -1, stop: func() bool { return true }}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.dst, err = dup(dst); err != nil {
		return l, err
	}
	if l.src, err = dup(src); err != nil {
		return l, err
	}
	var p [2]int
	if err = unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return l, os.NewSyscallError("pipe2", err)
	}
	l.r, l.w = p[0], p[1]
	if l.size, err = unix.FcntlInt(uintptr(l.w), unix.F_SETPIPE_SZ, pipeBytes); err != nil {
		if l.size, err = unix.FcntlInt(uintptr(l.w), unix.F_GETPIPE_SZ, 0); err != nil {
			return l, os.NewSyscallError("fcntl", err)
		}
	}
	l.stop = context.AfterFunc(ctx, l.shutdown)
	return l, nil
}

// linked runs do with a link in a thread of its own, which ends with it: there
// may be many at once, and the runtime would keep their threads for good.
func linked(ctx context.Context, dst, src *net.UnixConn, do func(*link) error) error {
	l, err := newLink(ctx, dst, src)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := do(l)
		l.close()
		done <- err
	}()
	return <-done
}

func dup(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, derr := -1, error(nil)
	if err := raw.Control(func(p uintptr) { fd, derr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("fcntl", derr)
}

// shutdown ends both sockets, so that whoever waits for them wakes.
func (l *link) shutdown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		_ = unix.Shutdown(l.dst, unix.SHUT_RDWR) // the other end may have done so
		_ = unix.Shutdown(l.src, unix.SHUT_RDWR)
	}
}

// close gives back the link's descriptors; the sockets live on.
func (l *link) close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, fd := range []int{l.dst, l.src, l.r, l.w} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// move moves n bytes, or all up to the end when n is negative.
func (l *link) move(n int64) error {
	for n != 0 {
		most := int64(l.size)
		if n >= 0 {
			most = min(most, n)
		}
		got, err := l.fill(int(most))
		if err == io.EOF && n < 0 {
			return nil
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if err := l.drain(got); err != nil {
			return err
		}
		if n > 0 {
			n -= int64(got)
		}
	}
	return nil
}

// fill takes up to n bytes from the source into the pipe.
func (l *link) fill(n int) (int, error) {
	return l.retry("splice", l.source, func() (int, error) {
		m, err := unix.Splice(l.src, nil, l.w, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		return int(m), err
	})
}

// drain gives n bytes of the pipe to the destination.
func (l *link) drain(n int) error {
	for n > 0 {
		m, err := l.retry("splice", l.sink, func() (int, error) {
			m, err := unix.Splice(l.r, nil, l.dst, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			return int(m), err
		})
		if err == io.EOF {
			err = io.ErrShortWrite
		}
		if err != nil {
			return err
		}
		n -= m
	}
	return nil
}

func (l *link) read(p []byte) (int, error) {
	return l.retry("recv", l.source, func() (int, error) {
		n, _, err := unix.Recvfrom(l.src, p, unix.MSG_DONTWAIT)
		return n, err
	})
}

func (l *link) write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := l.retry("send", l.sink, func() (int, error) {
			return unix.SendmsgN(l.dst, p[done:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		})
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// retry calls do until it neither would block nor was interrupted. 0 bytes are
// [io.EOF].
func (l *link) retry(what string, wait func() error, do func() (int, error)) (int, error) {
	for {
		n, err := do()
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if err := wait(); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, os.NewSyscallError(what, err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// source waits until there is something to read, or the destination has hung
// up.
func (l *link) source() error {
	return poll([]unix.PollFd{{Fd: int32(l.src), Events: unix.POLLIN}, {Fd: int32(l.dst), Events: unix.POLLRDHUP}})
}

// sink waits until the destination takes more.
func (l *link) sink() error {
	return poll([]unix.PollFd{{Fd: int32(l.dst), Events: unix.POLLOUT}})
}

// poll waits for the first of fds; any event of another is the end.
func poll(fds []unix.PollFd) error {
	for {
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		for _, f := range fds[1:] {
			if f.Revents != 0 {
				return os.NewSyscallError("poll", unix.EPIPE)
			}
		}
		if fds[0].Revents != 0 {
			return nil
		}
	}
}
