package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// drawAtRest draws random bytes that every copy of this guest will know. What
// is drawn after a restore must be something else.
func (s *Server) drawAtRest() { draw(&s.atRest) }

// draw fills b from the kernel: the program's own generator might be what
// repeats.
func draw(b *[32]byte) error {
	for n := 0; n < len(b); {
		m, err := unix.Getrandom(b[n:], 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		default:
			n += m
		}
	}
	return nil
}

// redraw draws anew after a restore, and refuses a hello under which random
// bytes would repeat.
func (s *Server) redraw(h *wire.Hello) (digest string, err error) {
	if !h.Restored {
		return "", nil
	}
	if h.Entropy != sandbox.HostLive {
		return "", sandbox.Errorf(sandbox.Unsupported, "this guest cannot renew its kernel's random bytes").WithField("entropy", string(h.Entropy))
	}
	var now [32]byte
	if err := draw(&now); err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "the kernel gives no random bytes: %v", err).WithField("entropy", string(h.Entropy))
	}
	if now == s.atRest {
		return "", sandbox.Errorf(sandbox.Internal, "random bytes repeat after the restore").WithField("entropy", string(h.Entropy))
	}
	s.atRest = now
	sum := sha256.Sum256(now[:])
	return hex.EncodeToString(sum[:]), nil
}

// restored does what a restore asks for once the identity is set.
func (s *Server) restored(ctx context.Context, h *wire.Hello, draw string) *wire.Restore {
	r := &wire.Restore{Generation: h.Generation, Entropy: h.Entropy, Clock: h.Clock, Draw: draw}
	if s.cfg.HookDir != "" {
		r.Hooks, r.HooksLeft = s.runHooks(ctx, h)
	}
	return r
}

// MachineIDs are the files that hold the machine's ID in a sandbox. The second
// is for programs of before the first; on most systems it is a link to it.
func MachineIDs() []string { return []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} }

// setMachineID writes the machine's ID where it is another one than before. A
// guest that goes on as the same machine leaves the files alone.
func (s *Server) setMachineID(id string) {
	if id == "" || id == s.machineID {
		return
	}
	s.machineID = id
	for i, path := range s.cfg.MachineIDs {
		replaceID(path, id, i == 0)
	}
}

// replaceID writes a file in place; a link in its place goes when missing is to
// be made, and is left alone otherwise. It reports whether there is a file.
func replaceID(path, id string, missing bool) bool {
	const flags = unix.O_WRONLY | unix.O_TRUNC | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Open(path, flags, 0)
	if missing && (err == unix.ELOOP || err == unix.ENOENT) {
		unix.Unlink(path)
		fd, err = unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o444)
	}
	if err != nil {
		return false // a root file system without /etc, or not ours to write
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(id+"\n"))
	return err == nil
}
