package archive

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// PackOptions says how to pack.
type PackOptions struct {
	// Name is what the packed file or directory is called in the stream; "." is
	// a tree whose own name does not matter. Default: the last component of the
	// path.
	Name string
	// OneFileSystem leaves out what other file systems are mounted on.
	OneFileSystem bool
	// Owners writes the true owners; otherwise 0.
	Owners bool
	// Special keeps set-user-ID, set-group-ID and sticky bits.
	Special bool
	// Strict makes what cannot be read, or changes while it is read, an error.
	Strict bool
	// Exclude are files or directories that are left out, wherever they turn up.
	Exclude []os.FileInfo
	// Progress, when set, is told now and then how far the work is.
	Progress func(Progress)
}

// maxHardLinks bounds how many files with several names are remembered; beyond
// it further names are packed as files of their own.
const maxHardLinks = 1 << 20

// Pack writes the file or directory at path to w as a tar stream in PAX
// format: names are carried byte by byte. A link that path itself names is
// followed, no other. Sockets, FIFOs and devices are left out and reported, as
// is what cannot be read or changes while it is read; holes are not read from
// the disk. Memory does not grow with file sizes.
func Pack(ctx context.Context, w io.Writer, path string, o PackOptions) (Summary, error) {
	f, err := openSource(path)
	if err != nil {
		return Summary{}, err
	}
	defer f.Close()
	if o.Name == "" {
		abs, err := filepath.Abs(path)
		if err != nil {
			return Summary{}, sourceError(path, err)
		}
		o.Name = filepath.Base(abs)
	}
	if o.Name == "/" {
		o.Name = "."
	}
	return PackFile(ctx, w, f, o)
}

// openSource opens a file or directory for reading and nothing else: opening a
// device can have effects, opening a FIFO can block.
func openSource(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sourceError(path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, sourceError(path, err)
	}
	if err := checkSource(path, &st); err != nil {
		return nil, err
	}
	real, err := unix.Open(procPath(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sourceError(path, err)
	}
	return os.NewFile(uintptr(real), path), nil
}

func checkSource(name string, st *unix.Stat_t) error {
	if t := st.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
		return sandbox.Errorf(sandbox.Invalid, "the source is neither a file nor a directory").
			WithField("source", name).WithHint("devices, FIFOs and sockets cannot be copied")
	}
	return nil
}

// PackFile is [Pack] for a file or directory that the caller has opened for
// reading. PackOptions.Name must be set.
func PackFile(ctx context.Context, w io.Writer, f *os.File, o PackOptions) (Summary, error) {
	p := &packer{
		ctx: ctx, o: o, tw: tar.NewWriter(w), seen: map[inode]string{},
		buf: make([]byte, copyBuffer), ticker: ticker{report: o.Progress},
	}
	for _, info := range o.Exclude {
		if st, ok := info.Sys().(*unixStat); ok {
			p.exclude = append(p.exclude, inode{uint64(st.Dev), st.Ino})
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return p.sum, sourceError(o.Name, err)
	}
	if err := checkSource(o.Name, &st); err != nil {
		return p.sum, err
	}
	p.dev = uint64(st.Dev)
	if err := p.opened(int(f.Fd()), o.Name, &st); err != nil {
		return p.sum, err
	}
	if err := p.tw.Close(); err != nil {
		return p.sum, writeError(err)
	}
	p.ticker.tick(Progress{p.sum.Entries, p.sum.Bytes, ""}, true)
	return p.sum, nil
}

type inode struct{ dev, ino uint64 }

type packer struct {
	ctx     context.Context
	o       PackOptions
	tw      *tar.Writer
	sum     Summary
	ticker  ticker
	buf     []byte
	dev     uint64
	seen    map[inode]string // first name of files with several
	exclude []inode
}

// entry packs name, which is in the open directory dir. What goes wrong with
// the file is reported, what goes wrong with the stream is returned.
func (p *packer) entry(dir int, name, full string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return p.fault(full, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return p.symlink(dir, name, full, &st)
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		p.sum.skip(full, "a device, FIFO or socket")
		return nil
	}
	// The type may have changed meanwhile: O_NONBLOCK keeps a FIFO from
	// blocking, O_NOFOLLOW a link from being followed, and fstat decides.
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return p.fault(full, err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return p.fault(full, err)
	}
	return p.opened(fd, full, &st)
}

// fault is something wrong with one file: reported, or with Strict returned.
func (p *packer) fault(full string, err error) error {
	if p.o.Strict {
		return sourceError(full, err)
	}
	p.sum.skip(full, err.Error())
	return nil
}

var (
	errChanged = errors.New("it changed while it was read")
	errCutOff  = errors.New("it was cut off while it was read; the rest is zero")
	errTarget  = errors.New("its target cannot be read")
)

func (p *packer) opened(fd int, full string, st *unix.Stat_t) error {
	if err := ctxError(p.ctx); err != nil {
		return err
	}
	id := inode{uint64(st.Dev), st.Ino}
	if slices.Contains(p.exclude, id) {
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return p.directory(fd, full, st)
	case unix.S_IFREG:
		return p.regular(fd, full, st, id)
	default:
		return p.fault(full, errChanged)
	}
}

func (p *packer) directory(fd int, full string, st *unix.Stat_t) error {
	if err := p.header(full+"/", tar.TypeDir, st, 0, ""); err != nil {
		return err
	}
	if p.o.OneFileSystem && uint64(st.Dev) != p.dev {
		p.sum.skip(full, "what is in it lies on another file system")
		return nil
	}
	names, err := readNames(fd)
	if err != nil {
		if err := p.fault(full, err); err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.entry(fd, n, full+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) symlink(dir int, name, full string, st *unix.Stat_t) error {
	buf := make([]byte, sandbox.MaxPath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil || n == len(buf) {
		return p.fault(full, errTarget)
	}
	return p.header(full, tar.TypeSymlink, st, 0, string(buf[:n]))
}

func (p *packer) regular(fd int, full string, st *unix.Stat_t, id inode) error {
	if st.Nlink > 1 {
		if first, ok := p.seen[id]; ok {
			return p.header(full, tar.TypeLink, st, 0, first)
		}
		if len(p.seen) < maxHardLinks {
			p.seen[id] = full
		}
	}
	if err := p.header(full, tar.TypeReg, st, st.Size, ""); err != nil {
		return err
	}
	return p.content(fd, full, st.Size)
}

func (p *packer) header(name string, kind byte, st *unix.Stat_t, size int64, link string) error {
	mode := int64(st.Mode & 0o777)
	if p.o.Special {
		mode = int64(st.Mode & 0o7777)
	}
	hdr := &tar.Header{
		Typeflag: kind, Name: name, Linkname: link, Size: size, Mode: mode, Format: tar.FormatPAX,
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
	if p.o.Owners {
		hdr.Uid, hdr.Gid = int(st.Uid), int(st.Gid)
	}
	p.sum.Entries++
	p.ticker.tick(Progress{p.sum.Entries, p.sum.Bytes, name}, false)
	if err := p.tw.WriteHeader(hdr); err != nil {
		return writeError(err)
	}
	return nil
}

func sourceError(path string, err error) error {
	kind := sandbox.Invalid
	switch {
	case errors.Is(err, os.ErrNotExist):
		kind = sandbox.NotFound
	case errors.Is(err, os.ErrPermission):
		kind = sandbox.Denied
	}
	return sandbox.Errorf(kind, "the source cannot be read: %w", err).WithField("source", path)
}

// writeError tells that the stream cannot be written, as the error of whoever
// reads it says.
func writeError(err error) error {
	if own := (*sandbox.Error)(nil); errors.As(err, &own) {
		return own
	}
	return sandbox.Errorf(sandbox.Unavailable, "the stream cannot be written: %w", err)
}
