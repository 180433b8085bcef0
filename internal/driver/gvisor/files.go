package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// The files of an image of files, in the order in which a sentry takes them:
// what there is, the tree of names, where the contents lie, and the contents.
var fileImage = []string{"files", driver.TreeName, "pages-meta", "pages"}

var _ driver.FileSaver = (*Instance)(nil)
var _ driver.FileLister = (*Instance)(nil)

// fsSaveArgs are gVisor's boot.FSSaveArgs. What is left out asks for the root's
// upper layer.
type fsSaveArgs struct {
	ExitAfterSaving bool `json:"exit_after_saving"`
}

// fsWaitArgs are gVisor's boot.WaitFSRestoreArgs.
type fsWaitArgs struct {
	CID string
}

// SaveFiles writes what the sandbox has changed in its root into dir, which must
// be empty, and nothing of its memory. With leaveRunning it goes on afterwards;
// else it stays stopped. When it fails the sandbox goes on.
func (i *Instance) SaveFiles(ctx context.Context, dir string, leaveRunning bool) error {
	if err := i.mayList(); err != nil {
		return err
	}
	files, err := openImage(dir, fileImage, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer closeAll(files)
	start := time.Now()
	err = i.saveFiles(ctx, files, leaveRunning)
	if i.trace != nil {
		i.trace("gvisor.savefiles", start, time.Since(start))
	}
	if err == nil {
		closeAll(files)
		err = i.letGo(dir)
	}
	return i.unsaved(ctx, dir, err)
}

// ListFiles returns a file of the driver's own, at its beginning, with the tree
// of what the sandbox has changed in its root: see [driver.FileLister]. The
// sandbox goes on.
func (i *Instance) ListFiles(ctx context.Context) (*os.File, error) {
	if err := i.mayList(); err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "no place for what is not wanted: %w", err)
	}
	defer null.Close()
	tree, err := openStore(i.dir, "/var/tmp")
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "no place for a list of files: %w", err)
	}
	start := time.Now()
	err = i.saveFiles(ctx, []*os.File{null, tree, null, null}, true)
	if i.trace != nil {
		i.trace("gvisor.listfiles", start, time.Since(start))
	}
	if err == nil {
		_, err = tree.Seek(0, io.SeekStart)
	}
	if err := i.unsaved(ctx, tree.Name(), err); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

func (i *Instance) mayList() error {
	switch {
	case !i.started.Load():
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has not been started")
	case !i.stored:
		return sandbox.Errorf(sandbox.Unsupported, "the files of this sandbox are memory: no disk was found for them").
			WithHint("put the state directory and /var/tmp on a disk from which programs may be run")
	}
	return nil
}

// saveFiles has the sentry write its files, in the order of fileImage, while
// their size is watched.
func (i *Instance) saveFiles(ctx context.Context, files []*os.File, leaveRunning bool) (err error) {
	if !leaveRunning {
		if err := i.ctl.call(ctx, methodPause, nil); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, i.ctl.call(ctx, methodResume, nil))
			}
		}()
	}
	w := watchSize(files, i.maxImage, func() { _ = i.sentry.Process.Kill() })
	err = i.ctl.callFiles(ctx, methodFSSave, fsSaveArgs{}, files)
	if werr := w.stop(); werr != nil {
		return werr
	}
	return err
}

// unsaved explains why files were not saved; nil stays nil.
func (i *Instance) unsaved(ctx context.Context, place string, err error) error {
	var told *sandbox.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &told):
		return told
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case full(err):
		return sandbox.Errorf(sandbox.ResourceExhausted, "there is no room for the sandbox's files").WithField("image", place).WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the sandbox's files could not be saved: %v", err).WithCause(err)
}

// imageBound is how many bytes an image of files may take: what the disk limit
// lets be there, and a tree of names as large as the memory lets a sentry know.
func imageBound(l sandbox.Limits) int64 {
	return l.DiskBytes + l.DiskBytes/8 + 4*l.MemoryBytes + 64<<20
}

// sizeWatch ends a sentry that writes more than it may.
type sizeWatch struct {
	quit chan struct{}
	done chan error
}

// watchEvery is how often sizes are looked at: at the speed of a fast disk some
// tens of megabytes are written meanwhile.
const watchEvery = 20 * time.Millisecond

// watchSize calls end once files hold more than limit bytes in all. It ends with
// stop, or then.
func watchSize(files []*os.File, limit int64, end func()) *sizeWatch {
	w := &sizeWatch{make(chan struct{}), make(chan error, 1)}
	go func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			if total(files) > limit {
				end()
				w.done <- sandbox.Errorf(sandbox.ResourceExhausted, "the sandbox wrote more than %d bytes of files and has been ended", limit)
				return
			}
			select {
			case <-tick.C:
			case <-w.quit:
				w.done <- nil
				return
			}
		}
	}()
	return w
}

func (w *sizeWatch) stop() error {
	close(w.quit)
	return <-w.done
}

// total is how many bytes files hold or reach to.
func total(files []*os.File) (n int64) {
	for _, f := range files {
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) == nil {
			n += max(st.Size, st.Blocks*512)
		}
	}
	return n
}

// letGoTime is how long a sentry may take to close what it has written.
const letGoTime = time.Second

// letGo checks that the sentry holds none of an image's files any more: one that
// a guest has taken over could change them after they have been counted. A lease
// for reading is to be had on no file that somebody has open for writing.
func (i *Instance) letGo(dir string) error {
	files, err := openImage(dir, fileImage, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closeAll(files)
	for _, f := range files {
		for until := time.Now().Add(letGoTime); ; time.Sleep(time.Millisecond) {
			_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
			if err == nil {
				_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
			}
			if err != unix.EAGAIN { // nobody, or a file system without leases
				break
			}
			if time.Now().After(until) {
				_ = i.sentry.Process.Kill()
				return sandbox.Errorf(sandbox.Internal, "the sandbox's kernel did not let go of its image and has been ended")
			}
		}
	}
	return nil
}

// giveImage hands a sentry the files that it is to begin with. They come last: a
// checkpoint of it names its other descriptors by their numbers, and is restored
// by a sentry that has no such files.
func (c *creation) giveImage(r *role) error {
	if c.req.Files == "" {
		return nil
	}
	if !c.stored {
		return sandbox.Errorf(sandbox.Unsupported, "there is no disk for this sandbox's files, which those of an image need").
			WithHint("put the state directory and /var/tmp on a disk from which programs may be run")
	}
	files, err := openImage(c.req.Files, fileImage, unix.O_RDONLY)
	if err != nil {
		return err
	}
	// A sentry that finds too much in an image ends in the middle of it.
	if total(files[len(files)-1:]) > c.req.Limits.DiskBytes {
		closeAll(files)
		return sandbox.Errorf(sandbox.ResourceExhausted, "the disk limit is too small for the files to begin with").
			WithField("disk", strconv.FormatInt(c.req.Limits.DiskBytes, 10)).WithHint("ask for more disk")
	}
	for _, f := range files {
		r.give("fs-restore-fds", f)
	}
	return nil
}

// awaitFiles waits until all that the sandbox began with is in its place. The
// image is not needed any more afterwards.
func (i *Instance) awaitFiles(ctx context.Context) error {
	if !i.fromFiles {
		return nil
	}
	if err := i.ctl.call(ctx, methodWaitFSRestore, fsWaitArgs{CID: string(i.id)}); err != nil {
		return fmt.Errorf("the image of files: %w", err)
	}
	return nil
}
