// Package sock makes and dials the unix sockets of a keeper and checks who is
// at the other end.
//
// A socket stands in a directory of mode 0700 that belongs to the caller; the
// peer must have the caller's user id as well. A path longer than a socket
// address can hold is reached through a descriptor of its directory.
package sock

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// maxPath is what fits in sockaddr_un with its terminating NUL.
const maxPath = 107

// CheckDir returns an error unless dir is a directory (not a link) of mode
// 0700 that belongs to this process's user.
func CheckDir(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return sandbox.Errorf(sandbox.NotFound, "no such directory").WithField("dir", dir).WithCause(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot look at the directory: %w", err).WithField("dir", dir)
	}
	if !fi.IsDir() || fi.Mode().Perm() != 0o700 || int(st.Uid) != os.Geteuid() {
		return sandbox.Errorf(sandbox.Denied, "must be a directory of mode 0700 that belongs to user %d", os.Geteuid()).
			WithField("dir", dir).WithHint("remove it, or choose another with BELLJAR_RUNTIME_DIR")
	}
	return nil
}

// Listen makes a socket called name in dir.
func Listen(dir, name string) (*net.UnixListener, error) {
	path, done, err := address(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "cannot listen: %w", err).WithField("socket", filepath.Join(dir, name))
	}
	l.SetUnlinkOnClose(false) // the name may be reached through a descriptor that is gone by then
	return l, nil
}

// Dial connects to the socket called name in dir and checks that its owner is
// this process's user.
func Dial(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	path, done, err := address(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "nobody answers: %w", err).WithField("socket", filepath.Join(dir, name))
	}
	u := c.(*net.UnixConn)
	if err := CheckPeer(u); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// CheckPeer returns a Denied error unless the other end of c has this
// process's user id, as the kernel tells it.
func CheckPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the connection ended: %w", err)
	}
	var cred *unix.Ucred
	var gerr error
	err = raw.Control(func(fd uintptr) {
		cred, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || gerr != nil {
		return sandbox.Errorf(sandbox.Denied, "cannot tell who is at the other end of the socket").WithCause(gerr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return sandbox.Errorf(sandbox.Denied, "the other end of the socket belongs to another user").
			WithField("uid", strconv.Itoa(int(cred.Uid)))
	}
	return nil
}

func address(dir, name string) (path string, done func(), err error) {
	path = filepath.Join(dir, name)
	if len(path) <= maxPath {
		return path, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, sandbox.Errorf(sandbox.Unavailable, "cannot open the directory: %w", err).WithField("dir", dir)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { unix.Close(fd) }, nil
}
