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
	raw, err := conn.SyscallConn()
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "the peer cannot be asked for: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		cerr = err
	}
	if cerr != nil {
		return sandbox.Errorf(sandbox.Internal, "the peer cannot be asked for: %w", cerr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return sandbox.Errorf(sandbox.Denied, "the other end of the socket belongs to user %d", cred.Uid)
	}
	return nil
}
