package fake

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// FilesFile is, in the working directory of a guest that is a child process,
// what counts as its files.
const FilesFile = "disk"

// fileEnv names the variable by which a guest learns of it.
const fileEnv = "BELLJAR_FAKE_FILE"

// The parts of an image of files.
const (
	treeFile  = driver.TreeName
	filesFile = "files"
)

var _ driver.FileSaver = (*instance)(nil)
var _ driver.FileLister = (*instance)(nil)

// SaveFiles copies the guest's file into dir. With leaveRunning, or after a
// failure, its processes go on.
func (in *instance) SaveFiles(ctx context.Context, dir string, leaveRunning bool) (err error) {
	c, err := in.stopped()
	if err != nil {
		return err
	}
	defer func() {
		if leaveRunning || err != nil {
			_ = unix.Kill(c.pid, unix.SIGCONT) // it may have been killed meanwhile
		}
	}()
	if err := in.d.script.run(ctx.Done(), SaveFiles); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(in.handle.Dir, FilesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.Internal, "cannot read the guest's files: %w", err)
	}
	tree, err := treeOf(content)
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{filesFile: nil, treeFile: tree, metaFile: nil, pagesFile: content} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the image: %w", err)
		}
		_, err = f.Write(b)
		if err := errors.Join(err, f.Close()); err != nil {
			return sandbox.Errorf(sandbox.Internal, "cannot write the image: %w", err)
		}
	}
	return nil
}

// ListFiles lists the guest's file.
func (in *instance) ListFiles(ctx context.Context) (*os.File, error) {
	c, err := in.stopped()
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Kill(c.pid, unix.SIGCONT) }()
	if err := in.d.script.run(ctx.Done(), ListFiles); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(in.handle.Dir, FilesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot read the guest's files: %w", err)
	}
	tree, err := treeOf(content)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(in.handle.Dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot make a list: %w", err)
	}
	f := os.NewFile(uintptr(fd), "list")
	if _, err = f.Write(tree); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "cannot write a list: %w", err)
	}
	return f, nil
}

// stopped stops the guest's processes.
func (in *instance) stopped() (*child, error) {
	in.mu.Lock()
	c, ok := in.running.(*child)
	started := in.started
	in.mu.Unlock()
	switch {
	case !started:
		return nil, sandbox.Errorf(sandbox.Conflict, "the guest has not started")
	case !ok:
		return nil, sandbox.Errorf(sandbox.Unsupported, "only a guest that is a child process can be saved")
	}
	if err := unix.Kill(c.pid, unix.SIGSTOP); err != nil {
		return nil, sandbox.Errorf(sandbox.Conflict, "the guest has ended").WithCause(err)
	}
	return c, nil
}

// treeOf is the tree of a root with one file.
func treeOf(content []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	size := binary.LittleEndian.AppendUint64(nil, uint64(len(content)))
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./" + FilesFile, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(size))},
	} {
		err := w.WriteHeader(&h)
		if err == nil && h.Size > 0 {
			_, err = w.Write(size)
		}
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Internal, "cannot list a file: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot list a file: %w", err)
	}
	return out.Bytes(), nil
}

// beginWith puts the file of an image into its place.
func (in *instance) beginWith(dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, treeFile)); err != nil {
		kind := sandbox.Internal
		if errors.Is(err, fs.ErrNotExist) {
			kind = sandbox.NotFound
		}
		return sandbox.Errorf(kind, "the image cannot be read: %w", err).WithField("image", dir)
	}
	content, err := os.ReadFile(filepath.Join(dir, pagesFile))
	if err == nil && len(content) > 0 {
		err = os.WriteFile(filepath.Join(in.handle.Dir, FilesFile), content, 0o600)
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "the image cannot be read: %w", err).WithField("image", dir)
	}
	return nil
}
