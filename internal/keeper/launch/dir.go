package launch

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	keepersDir = "keepers"
	newPrefix  = ".new-" // a directory that its maker has not finished
	nameLen    = 10
)

// newDir is a keeper directory that this process has made and locked.
type newDir struct {
	path              string
	lock, socket, fds *os.File
}

// makeDir makes RUN/keepers/K with a held lock and listening sockets. Under
// its name it never exists without them.
func makeDir(run string) (d *newDir, err error) {
	parent, err := KeepersDir(run)
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(rand.Text())[:nameLen]
	tmp := filepath.Join(parent, newPrefix+name)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "cannot make a keeper directory: %w", err).WithField("dir", tmp)
	}
	d = &newDir{path: tmp}
	defer func() {
		if err != nil {
			err = d.discard(err)
			d.close()
			d = nil
		}
	}()
	if d.lock, err = keeper.TryLock(tmp); err != nil {
		return d, err
	}
	if d.socket, err = listen(tmp, wire.SocketName); err != nil {
		return d, err
	}
	if d.fds, err = listen(tmp, wire.FDSocketName); err != nil {
		return d, err
	}
	path := filepath.Join(parent, name)
	if err := os.Rename(tmp, path); err != nil {
		return d, sandbox.Errorf(sandbox.Internal, "cannot name a keeper directory: %w", err).WithField("dir", path)
	}
	d.path = path
	return d, nil
}

// KeepersDir returns RUN/keepers, making it and RUN when they are missing, and
// checks that both are the caller's own and closed to others, and that nobody
// else could put others in their place.
func KeepersDir(run string) (string, error) {
	if !filepath.IsAbs(run) {
		return "", sandbox.Errorf(sandbox.Invalid, "the runtime directory is an absolute path").WithField("runtime dir", run)
	}
	parent := filepath.Join(run, keepersDir)
	if err := config.CheckAncestors(parent); err != nil {
		return "", err
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", sandbox.Errorf(sandbox.Unavailable, "cannot make the runtime directory: %w", err).
			WithField("runtime dir", run).WithHint("choose another with BELLJAR_RUNTIME_DIR")
	}
	for _, dir := range []string{run, parent} {
		if err := sock.CheckDir(dir); err != nil {
			return "", err
		}
	}
	if err := config.CheckAncestors(parent); err != nil { // those that were made meanwhile
		return "", err
	}
	return parent, nil
}

func listen(dir, name string) (*os.File, error) {
	l, err := sock.Listen(dir, name)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot pass a socket: %w", err)
	}
	return f, nil
}

// close closes this process's descriptors; the engine has its own.
func (d *newDir) close() {
	for _, f := range []*os.File{d.lock, d.socket, d.fds} {
		if f != nil {
			f.Close()
		}
	}
}

// discard removes the directory, in which no engine has run, and returns err.
func (d *newDir) discard(err error) error {
	if rerr := os.RemoveAll(d.path); rerr != nil {
		return sandbox.AsError(err).WithHint("%s; and %s could not be removed: %v", sandbox.AsError(err).Hint, d.path, rerr)
	}
	return err
}
