package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/daemon/fdpass"
	"github.com/belljar-sh/belljar/internal/daemon/ondemand"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// lock takes the daemon's lock for the life of the process.
func lock(d config.Dirs) (*os.File, error) {
	f, err := os.OpenFile(d.DaemonLock(), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the daemon's lock cannot be opened: %w", err)
	}
	err = lifelock.Take(f)
	if err == nil {
		return f, nil
	}
	f.Close()
	if !errors.Is(err, lifelock.ErrHeld) {
		return nil, sandbox.Errorf(sandbox.Internal, "the daemon's lock cannot be taken: %w", err).WithField("lock", d.DaemonLock())
	}
	return nil, sandbox.Errorf(sandbox.AlreadyExists, "another daemon of this user is running").WithField("lock", d.DaemonLock()).
		WithCause(err)
}

// listen binds a socket, replacing one that a dead daemon left. Only the
// holder of the daemon's lock does this.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.Internal, "an old socket cannot be removed: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the socket cannot be bound: %w", err).WithField("socket", path)
	}
	l.SetUnlinkOnClose(false) // removed while it still accepts, so that nobody is turned away
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "the socket's mode cannot be set: %w", err).WithField("socket", path)
	}
	return l, nil
}

// ownPeers passes on the connections of the daemon's own user only. The
// directory keeps others out already.
type ownPeers struct {
	*net.UnixListener
	log *slog.Logger
}

// Accept returns the next connection of the daemon's own user.
func (l ownPeers) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := ondemand.CheckPeer(c); err != nil {
			l.log.Warn("a connection was refused", "err", err)
			c.Close()
			continue
		}
		return c, nil
	}
}

// fileTime bounds how long passing files may take.
const fileTime = 10 * time.Second

// serveFiles takes files for mounts until l is closed.
func serveFiles(l net.Listener, m *manager.Manager, log *slog.Logger) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			if err := takeFiles(c.(*net.UnixConn), m); err != nil {
				log.Warn("files were not taken", "err", err)
			}
		})
	}
}

func takeFiles(c *net.UnixConn, m *manager.Manager) error {
	if err := c.SetDeadline(time.Now().Add(fileTime)); err != nil {
		return err
	}
	msg, files, err := fdpass.Receive(c, 4096)
	if err != nil {
		return err
	}
	var t wire.FDTicket
	if err := json.Unmarshal(msg, &t); err != nil || t.Ticket == "" || t.Count != len(files) {
		fdpass.Close(files)
		return sandbox.Errorf(sandbox.Invalid, "%d files came with a ticket that does not fit them", len(files))
	}
	if _, err := m.AddFiles(t.Ticket, files); err != nil {
		return err
	}
	return fdpass.Accept(c)
}
