package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// The files of a memory image, in the order in which a sentry takes them: the
// kernel's objects, where the pages lie, and the pages.
var imageFiles = []string{"state", "pages-meta", "pages"}

var _ driver.Checkpointer = (*Instance)(nil)
var _ driver.Restorer = (*Instance)(nil)

// saveArgs are gVisor's control.SaveOpts, restoreArgs its boot.RestoreOpts.
type (
	saveArgs struct {
		HavePagesFile bool `json:"have_pages_file"`
		// Pages that hold zeros need no place in the image.
		AppMFExcludeCommittedZeroPages bool `json:"app_mf_exclude_committed_zero_pages"`
		Resume                         bool
	}
	restoreArgs struct {
		HavePagesFile bool
		Background    bool
	}
)

// Checkpoint writes the sandbox's memory and file changes into dir, which must
// be empty. With leaveRunning the sandbox goes on afterwards; else it stays
// stopped, to be killed. When it fails the sandbox goes on.
func (i *Instance) Checkpoint(ctx context.Context, dir string, leaveRunning bool) error {
	if !i.started.Load() {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has not been started")
	}
	files, err := openImage(dir, imageFiles, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer closeAll(files)
	start := time.Now()
	host, err := i.save(ctx, files, leaveRunning)
	if err == nil {
		err = host.write(dir)
	}
	if i.trace != nil {
		i.trace("gvisor.checkpoint", start, time.Since(start))
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case full(err):
		return sandbox.Errorf(sandbox.ResourceExhausted, "there is no room for the sandbox's image").WithField("image", dir).WithCause(err)
	case sandbox.KindOf(err) == sandbox.Conflict:
		return err
	}
	return sandbox.Errorf(sandbox.Internal, "the sandbox could not be saved: %v", err).WithCause(err)
}

// save has the sentry write the image, and looks at what the image refers to
// while the sandbox stands still. gVisor can end a sandbox with its checkpoint,
// but then does so when that has failed, too; and it lets one that goes on do so
// at once. So it is stopped first, by a stop that is ours to end.
func (i *Instance) save(ctx context.Context, files []*os.File, leaveRunning bool) (*hostState, error) {
	if err := i.ctl.call(ctx, methodPause, nil); err != nil {
		return nil, err
	}
	stop := writeBack(files[len(files)-1])
	err := i.ctl.callFiles(ctx, methodCheckpoint, saveArgs{
		HavePagesFile: true, AppMFExcludeCommittedZeroPages: true, Resume: true,
	}, files)
	stop()
	var host *hostState
	if err == nil {
		host, err = i.describe()
	}
	if err == nil && !leaveRunning {
		return host, nil
	}
	if rerr := i.ctl.call(ctx, methodResume, nil); rerr != nil {
		err = errors.Join(err, rerr)
	}
	return host, err
}

// writeBackEvery is how often the disk is told of new pages.
const writeBackEvery = 15 * time.Millisecond

// writeBack has the disk begin with what is written to f at once instead of when
// all of it is there, until stop is called: whoever syncs the file then waits for
// the rest only. Errors show in that sync.
func writeBack(f *os.File) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(writeBackEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

// full reports whether a sentry's error says that the disk is full: it comes as
// a sentence.
func full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error())
}

// Continue has a sandbox go on that a checkpoint has left stopped.
func (i *Instance) Continue(ctx context.Context) error { return i.ctl.call(ctx, methodResume, nil) }

// Restore starts the sandbox from the image in dir instead of from the guest's
// program. Once only, and not after Start.
func (i *Instance) Restore(ctx context.Context, dir string) error {
	if !i.started.CompareAndSwap(false, true) {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox was started before")
	}
	image, err := openImage(dir, imageFiles, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closeAll(image)
	start := time.Now()
	host, err := readHost(dir)
	if err != nil {
		return err
	}
	files, err := i.fits(host)
	if err != nil {
		return err
	}
	if i.trace != nil {
		i.trace("gvisor.check", start, time.Since(start))
	}
	start = time.Now()
	err = i.ctl.callFiles(ctx, methodRestore, restoreArgs{HavePagesFile: true, Background: true}, image)
	if i.trace != nil {
		i.trace("gvisor.restore", start, time.Since(start))
	}
	if err == nil {
		err = i.ctl.redial()
	}
	if err == nil {
		err = holds(i.sentry.Process.Pid, files)
	}
	if err == nil || sandbox.KindOf(err) == sandbox.Conflict {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return sandbox.Errorf(sandbox.Internal, "the sandbox could not be restored: %v: %s", err, i.log.text()).WithCause(err)
}

// Sources tells that gVisor draws random bytes from the running host, and reads
// the time there.
func (i *Instance) Sources() (entropy, clock driver.Source) {
	return driver.HostLive, driver.HostLive
}

// openImage opens the files of an image beneath dir.
func openImage(dir string, names []string, flags int) ([]*os.File, error) {
	var files []*os.File
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(dir, name), flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			closeAll(files)
			kind := sandbox.Internal
			if errors.Is(err, os.ErrNotExist) {
				kind = sandbox.NotFound
			}
			return nil, sandbox.Errorf(kind, "the image cannot be opened: %w", err).WithField("image", dir)
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// ImageSize returns how many bytes the image in dir takes.
func ImageSize(dir string) (n int64, err error) {
	for _, name := range imageFiles {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			return 0, fmt.Errorf("image: %w", err)
		}
		n += fi.Size()
	}
	return n, nil
}
