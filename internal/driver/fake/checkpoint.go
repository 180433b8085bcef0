package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// MemoryFile is, in the working directory of a guest that is a child process,
// what counts as its memory: an image has a copy of it, and a restored guest
// finds it again. Nothing else of the guest survives.
const MemoryFile = "memory"

// memoryEnv names the variable by which a guest learns of it.
const memoryEnv = "BELLJAR_FAKE_MEMORY"

// The files of an image, as the gvisor driver writes them.
const (
	stateFile = "state"
	metaFile  = "pages-meta"
	pagesFile = "pages"
)

// state is what the state file holds.
type state struct {
	ID sandbox.ID `json:"id"` // of the sandbox that was saved
}

var _ driver.Checkpointer = (*instance)(nil)
var _ driver.Restorer = (*instance)(nil)

// Checkpoint stops the guest's processes, copies its memory file into dir and,
// with leaveRunning or after a failure, has them go on.
func (in *instance) Checkpoint(ctx context.Context, dir string, leaveRunning bool) (err error) {
	in.mu.Lock()
	c, child := in.running.(*child)
	in.mu.Unlock()
	if !child {
		return sandbox.Errorf(sandbox.Unsupported, "only a guest that is a child process can be saved")
	}
	if err := unix.Kill(c.pid, unix.SIGSTOP); err != nil {
		return sandbox.Errorf(sandbox.Conflict, "the guest has ended").WithCause(err)
	}
	defer func() {
		if leaveRunning || err != nil {
			_ = unix.Kill(c.pid, unix.SIGCONT) // it may have been killed meanwhile
		}
	}()
	if err := in.d.script.run(ctx.Done(), Checkpoint); err != nil {
		return err
	}
	memory, err := os.ReadFile(filepath.Join(in.handle.Dir, MemoryFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.Internal, "cannot read the guest's memory: %w", err)
	}
	kernel, err := json.Marshal(state{in.handle.ID})
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot encode the state: %w", err)
	}
	for name, b := range map[string][]byte{stateFile: kernel, metaFile: nil, pagesFile: memory} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the image: %w", err)
		}
		_, err = f.Write(b)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the image: %w", err)
		}
	}
	return nil
}

// Continue has the guest's processes go on that a checkpoint has left stopped.
func (in *instance) Continue(context.Context) error {
	in.mu.Lock()
	c, child := in.running.(*child)
	in.mu.Unlock()
	if !child {
		return sandbox.Errorf(sandbox.Conflict, "the guest has ended")
	}
	if err := unix.Kill(c.pid, unix.SIGCONT); err != nil {
		return sandbox.Errorf(sandbox.Conflict, "the guest has ended").WithCause(err)
	}
	return nil
}

// Sources tells that the guest is an ordinary process of the host.
func (in *instance) Sources() (entropy, clock driver.Source) {
	return driver.HostLive, driver.HostLive
}

// Restore puts the memory file of an image in its place and starts the guest.
func (in *instance) Restore(ctx context.Context, dir string) error {
	if err := in.d.script.run(ctx.Done(), Restore); err != nil {
		return err
	}
	if in.d.opts.Serve != nil {
		return sandbox.Errorf(sandbox.Unsupported, "only a guest that is a child process can be restored")
	}
	var was state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err == nil {
		err = json.Unmarshal(b, &was)
	}
	if err == nil && was.ID == "" {
		err = errors.New("it names no sandbox")
	}
	var memory []byte
	if err == nil {
		memory, err = os.ReadFile(filepath.Join(dir, pagesFile))
	}
	if err != nil {
		kind := sandbox.Internal
		if errors.Is(err, fs.ErrNotExist) {
			kind = sandbox.NotFound
		}
		return sandbox.Errorf(kind, "the image cannot be read: %w", err).WithField("image", dir)
	}
	if len(memory) > 0 {
		if err := os.WriteFile(filepath.Join(in.handle.Dir, MemoryFile), memory, 0o600); err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the guest's memory: %w", err)
		}
	}
	return in.Start(ctx)
}
