package startbench

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

// home is the installation of one run. It lies beneath the user's own, so that
// it is on the same disk, and shares nothing with it:
//
//	STATE/bench/X/lock      held for as long as the run lives
//	STATE/bench/X/runtime   the path of the runtime directory
//	STATE/bench/X/state     its state directory
//	RUN/bench/X             its runtime directory
type home struct {
	o    Options
	dir  string // STATE/bench/X
	lock *os.File
	dirs config.Dirs
	c    *client.Client
}

const (
	benchDir    = "bench"
	lockFile    = "lock"
	runtimeFile = "runtime"
	stateDir    = "state"
)

// maxRuntime is how long the path of a runtime directory may be: sockets lie
// beneath it.
const maxRuntime = 70

// newHome makes an installation, starts its daemon and gives it the template.
func newHome(ctx context.Context, o Options) (_ *home, err error) {
	parent := filepath.Join(o.Dirs.State, benchDir)
	if err := sweep(ctx, parent, o.Program); err != nil {
		return nil, err
	}
	h := &home{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close(context.WithoutCancel(ctx)))
		}
	}()
	if h.dir, err = makeIn(parent); err != nil {
		return nil, err
	}
	if h.lock, err = os.OpenFile(filepath.Join(h.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = lifelock.Take(h.lock)
	}
	if err != nil {
		return nil, unusable(h.dir, err)
	}
	if err := h.makeDirs(); err != nil {
		return nil, err
	}
	if err := h.copyTemplate(ctx); err != nil {
		return nil, err
	}
	h.c, err = client.Dial(ctx, client.Options{StateDir: h.dirs.State, RuntimeDir: h.dirs.Runtime, Program: o.Program})
	return h, err
}

// makeIn makes a directory in parent, which another run that ends may take away.
func makeIn(parent string) (dir string, err error) {
	for range 3 {
		if err := config.Private(parent); err != nil {
			return "", err
		}
		if dir, err = os.MkdirTemp(parent, ""); err == nil {
			return dir, nil
		}
	}
	return "", unusable(parent, err)
}

func unusable(dir string, err error) error {
	return sandbox.Errorf(sandbox.Internal, "the directory for the benchmark cannot be used: %w", err).WithField("directory", dir)
}

func (h *home) makeDirs() error {
	h.dirs = config.Dirs{
		State:   filepath.Join(h.dir, stateDir),
		Runtime: filepath.Join(h.o.Dirs.Runtime, benchDir, filepath.Base(h.dir)),
	}
	if len(h.dirs.Runtime) > maxRuntime {
		dir, err := os.MkdirTemp("/tmp", "belljar-bench-")
		if err != nil {
			return unusable("/tmp", err)
		}
		h.dirs.Runtime = dir
	}
	if err := os.WriteFile(filepath.Join(h.dir, runtimeFile), []byte(h.dirs.Runtime), 0o600); err != nil {
		return unusable(h.dir, err)
	}
	if err := config.Private(h.o.Dirs.Runtime); err != nil {
		return err
	}
	return errors.Join(h.dirs.MakeRuntime(), h.dirs.MakeState())
}

// copyTemplate copies the user's template. It is not linked: a link changes the
// time of a file's last change, by which snapshots know it.
func (h *home) copyTemplate(ctx context.Context) error {
	name := h.o.Template
	if name == sandbox.DefaultTemplate {
		return nil
	}
	if err := sandbox.CheckName("template", name); err != nil {
		return err
	}
	from := filepath.Join(h.o.Dirs.Templates(), name)
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.NotFound, "there is no such template").WithField("template", name).
			WithHint("`belljar template ls` lists those that are there")
	}
	var err error
	for _, flags := range [][]string{{"-a", "--reflink=auto"}, {"-a"}} { // not every cp knows the second
		args := append(flags, "--", from, filepath.Join(h.dirs.Templates(), name))
		if err = quietly(exec.CommandContext(ctx, "cp", args...)); err == nil {
			return nil
		}
	}
	return sandbox.Errorf(sandbox.Internal, "the template cannot be copied: %w", err).WithField("template", name)
}

// belljar prepares a command of the installation.
func (h *home) belljar(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.o.Program, args...)
	cmd.Env = append(os.Environ(), config.EnvState+"="+h.dirs.State, config.EnvRuntime+"="+h.dirs.Runtime)
	return cmd
}

// close ends the daemon with all its sandboxes and removes the installation.
func (h *home) close(ctx context.Context) error {
	if h.c != nil {
		h.c.Close()
	}
	if h.dir == "" {
		return nil
	}
	err := remove(ctx, h.dir, h.o.Program)
	if h.lock != nil {
		h.lock.Close()
	}
	return err
}

// sweep removes what runs that were killed have left.
func sweep(ctx context.Context, parent, program string) error {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return unusable(parent, err)
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		if held, err := lifelock.Held(filepath.Join(dir, lockFile)); held || err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := remove(ctx, dir, program); err != nil {
			return err
		}
	}
	return nil
}

// remove ends what an installation runs and removes its directories; the last
// one takes the directories above with it.
func remove(ctx context.Context, dir, program string) error {
	runtime, err := os.ReadFile(filepath.Join(dir, runtimeFile))
	if err == nil {
		if err := stopDaemon(ctx, config.Dirs{State: filepath.Join(dir, stateDir), Runtime: string(runtime)}, program); err != nil {
			return err // what it holds must not be removed under it
		}
		err = os.RemoveAll(string(runtime))
		_ = os.Remove(filepath.Dir(string(runtime))) // others may run
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil // it had not come so far
	}
	err = errors.Join(err, os.RemoveAll(dir))
	_ = os.Remove(filepath.Dir(dir))
	if err != nil {
		return unusable(dir, err)
	}
	return nil
}

// stopDaemon ends a daemon with all its sandboxes. When the daemon has been killed
// and its keepers live on, another one is started for them.
func stopDaemon(ctx context.Context, dirs config.Dirs, program string) error {
	keepers, err := os.ReadDir(dirs.Keepers())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unusable(dirs.Runtime, err)
	}
	c, err := client.Dial(ctx, client.Options{StateDir: dirs.State, RuntimeDir: dirs.Runtime, Program: program, NoStart: len(keepers) == 0})
	if sandbox.KindOf(err) == sandbox.Unavailable && len(keepers) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Stop(ctx, true)
}
