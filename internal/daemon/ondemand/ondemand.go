// Package ondemand reaches the daemon of the calling user and starts it when
// there is none. It is apart from the daemon itself so that programs that only
// talk to it do not link it.
//
// Any number of callers may start it at once: the daemon takes
// RUN/daemon.lock before it serves, and one that finds the lock held ends.
package ondemand

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options say where the daemon is and how it is started.
type Options struct {
	Dirs    config.Dirs
	Program string // the belljar program; empty: the running one
	NoStart bool   // only reach a daemon that runs
}

// startTime bounds how long a daemon may take to serve.
const startTime = 20 * time.Second

// Dial connects to the socket named name (of [config.Dirs]) of the user's
// daemon, starting the daemon if need be. It is safe for concurrent use.
func (o Options) Dial(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := o.connect(ctx, socket)
	if err == nil || !absent(err) {
		return conn, err
	}
	if o.NoStart {
		return nil, sandbox.Errorf(sandbox.Unavailable, "no daemon is running").WithCause(err)
	}
	return o.await(ctx, socket)
}

// absent reports whether err says that nobody serves.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, &sandbox.Error{Kind: sandbox.NotFound})
}

func (o Options) connect(ctx context.Context, socket string) (net.Conn, error) {
	if err := config.CheckPrivate(o.Dirs.Runtime); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := CheckPeer(conn.(*net.UnixConn)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// CheckPeer refuses a connection whose other end runs as another user.
func CheckPeer(conn *net.UnixConn) error {
	cred, err := peer(conn)
	if err != nil {
		return err
	}
	if int(cred.Uid) != os.Geteuid() {
		return sandbox.Errorf(sandbox.Denied, "the other end of the socket belongs to user %d", cred.Uid)
	}
	return nil
}

func peer(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the other end of the socket cannot be told: %w", err)
	}
	return cred, nil
}

// Ending returns a function that waits until the daemon that runs now has
// ended, whatever follows it.
func (o Options) Ending(ctx context.Context) (wait func(context.Context) error, err error) {
	conn, err := o.connect(ctx, o.Dirs.DaemonSocket())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	cred, err := peer(conn.(*net.UnixConn))
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(int(cred.Pid), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the daemon cannot be waited for: %w", err)
	}
	f := os.NewFile(uintptr(fd), "daemon")
	return func(ctx context.Context) error {
		defer f.Close()
		return awaitEnd(ctx, fd)
	}, nil
}

// awaitEnd waits for a process by its descriptor.
func awaitEnd(ctx context.Context, fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return sandbox.Errorf(sandbox.Internal, "the daemon cannot be waited for: %w", err)
		case ctx.Err() != nil:
			return sandbox.Errorf(sandbox.DeadlineExceeded, "the daemon has not ended yet").WithCause(ctx.Err())
		}
	}
}
