// Package config finds the directories of an installation, as
// docs/ARCHITECTURE.md lists them, and checks that they belong to the caller.
// It opens and writes nothing but the directories themselves.
package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/belljar-sh/belljar/sandbox"
)

// The environment variables that override the directories.
const (
	EnvState   = "BELLJAR_STATE_DIR"
	EnvRuntime = "BELLJAR_RUNTIME_DIR"
)

// maxRuntime bounds the runtime directory's path: the sockets of keepers
// beneath it must fit into the 108 bytes of a socket address.
const maxRuntime = 70

// Dirs are the directories of one user's installation.
type Dirs struct {
	State   string // survives a restart of the machine
	Runtime string // does not; sockets, locks, keepers
}

// Names inside [Dirs].
const (
	database   = "belljar.db"
	templates  = "templates"
	logs       = "logs"
	images     = "images"
	snapshots  = "snapshots"
	pools      = "pools.json"
	quota      = "quota.json"
	forks      = "forks"
	prepared   = "prepared"
	key        = "installation.key"
	keepers    = "keepers"
	daemonLock = "daemon.lock"
	daemonSock = "daemon.sock"
	fdSock     = "fds.sock"
	daemonLog  = "daemon.log"
)

// Database is the daemon's journal.
func (d Dirs) Database() string { return filepath.Join(d.State, database) }

// Templates holds the imported and built templates.
func (d Dirs) Templates() string { return filepath.Join(d.State, templates) }

// Logs holds the captured output of detached processes, by sandbox.
func (d Dirs) Logs() string { return filepath.Join(d.State, logs) }

// Images holds the memory and files of paused sandboxes, by sandbox.
func (d Dirs) Images() string { return filepath.Join(d.State, images) }

// Pools holds the sizes of the daemon's warm pools.
func (d Dirs) Pools() string { return filepath.Join(d.State, pools) }

// Quota holds the bounds of what the daemon saves.
func (d Dirs) Quota() string { return filepath.Join(d.State, quota) }

// Snapshots holds snapshots, by their ID.
func (d Dirs) Snapshots() string { return filepath.Join(d.State, snapshots) }

// Forks holds the images that forks are made from, for as long as that takes.
func (d Dirs) Forks() string { return filepath.Join(d.State, forks) }

// Key is the installation's key: what it has saved it knows by it.
func (d Dirs) Key() string { return filepath.Join(d.State, key) }

// Prepared holds the images of templates with a start command.
func (d Dirs) Prepared() string { return filepath.Join(d.State, prepared) }

// DaemonLog is what the daemon says of itself.
func (d Dirs) DaemonLog() string { return filepath.Join(d.State, daemonLog) }

// Keepers holds one directory per keeper.
func (d Dirs) Keepers() string { return filepath.Join(d.Runtime, keepers) }

// DaemonLock is held by the daemon for life.
func (d Dirs) DaemonLock() string { return filepath.Join(d.Runtime, daemonLock) }

// DaemonSocket serves the public API.
func (d Dirs) DaemonSocket() string { return filepath.Join(d.Runtime, daemonSock) }

// FDSocket takes descriptors for mounts.
func (d Dirs) FDSocket() string { return filepath.Join(d.Runtime, fdSock) }

// Find returns the directories of the calling user. It touches nothing.
// getenv is os.Getenv, uid os.Geteuid() and home the user's home directory.
// Root has the system's directories, whatever its environment says of XDG.
func Find(getenv func(string) string, uid int, home string) (Dirs, error) {
	var d Dirs
	var err error
	if d.State, err = pick(getenv, EnvState, func() string {
		switch {
		case uid == 0:
			return "/var/lib/belljar"
		case filepath.IsAbs(getenv("XDG_STATE_HOME")):
			return filepath.Join(getenv("XDG_STATE_HOME"), "belljar")
		case filepath.IsAbs(home):
			return filepath.Join(home, ".local/state/belljar")
		}
		return ""
	}); err != nil {
		return Dirs{}, err
	}
	if d.Runtime, err = pick(getenv, EnvRuntime, func() string {
		switch {
		case uid == 0:
			return "/run/belljar"
		case filepath.IsAbs(getenv("XDG_RUNTIME_DIR")):
			return filepath.Join(getenv("XDG_RUNTIME_DIR"), "belljar")
		}
		return "/tmp/belljar-" + strconv.Itoa(uid)
	}); err != nil {
		return Dirs{}, err
	}
	if len(d.Runtime) > maxRuntime {
		return Dirs{}, sandbox.Errorf(sandbox.Invalid, "the runtime directory's path has more than %d bytes, too long for sockets", maxRuntime).
			WithField(EnvRuntime, d.Runtime).WithHint("set %s to a shorter path", EnvRuntime)
	}
	return d, nil
}

// User returns [Find] for the process's own user and environment.
func User() (Dirs, error) {
	home, _ := os.UserHomeDir() // Find says what is missing
	return Find(os.Getenv, os.Geteuid(), home)
}

func pick(getenv func(string) string, name string, fallback func() string) (string, error) {
	if v := getenv(name); v != "" {
		if !filepath.IsAbs(v) {
			return "", sandbox.Errorf(sandbox.Invalid, "the path is not absolute").WithField(name, v)
		}
		return filepath.Clean(v), nil
	}
	v := fallback()
	if v == "" {
		return "", sandbox.Errorf(sandbox.Invalid, "no directory for this user: HOME is not set").
			WithField(name, "").WithHint("set HOME or %s", name)
	}
	return filepath.Clean(v), nil
}

// MakeRuntime makes the runtime directory and the one for keepers, and checks
// them.
func (d Dirs) MakeRuntime() error {
	if err := Private(d.Runtime); err != nil {
		return err
	}
	return Private(d.Keepers())
}

// MakeState makes the state directory and those inside it, and checks them.
func (d Dirs) MakeState() error {
	for _, dir := range []string{d.State, d.Templates(), d.Logs(), d.Images(), d.Snapshots(), d.Forks(), d.Prepared()} {
		if err := Private(dir); err != nil {
			return err
		}
	}
	return nil
}

// Private makes dir when it is missing, mode 0700, and checks that it is a
// directory (no link) that belongs to the caller, that nobody else may enter it
// (in /tmp somebody else may have made it first) and that nobody else could put
// another in its place ([CheckAncestors]).
func Private(dir string) error {
	if err := CheckAncestors(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return dirError(dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return dirError(dir, err)
	}
	return CheckPrivate(dir)
}

// CheckPrivate is [Private] for a directory that must be there. A missing one
// is [sandbox.NotFound].
func CheckPrivate(dir string) error {
	if err := CheckAncestors(dir); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.NotFound, "the directory does not exist").WithField("directory", dir)
	}
	if err != nil {
		return dirError(dir, err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return sandbox.Errorf(sandbox.Denied, "this is not a directory").WithField("directory", dir)
	case !ok || int(st.Uid) != os.Geteuid():
		return sandbox.Errorf(sandbox.Denied, "the directory belongs to another user").WithField("directory", dir).
			WithHint("set %s and %s to directories of your own", EnvState, EnvRuntime)
	case info.Mode().Perm()&0o077 != 0:
		return sandbox.Errorf(sandbox.Denied, "others may enter the directory (mode %#o)", info.Mode().Perm()).
			WithField("directory", dir).WithHint("chmod 700 %s", dir)
	}
	return nil
}

func dirError(dir string, err error) error {
	return sandbox.Errorf(sandbox.Internal, "the directory cannot be used: %w", err).WithField("directory", dir)
}
