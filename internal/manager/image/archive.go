package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/sandbox"
)

// An archive of an image is a tar stream (POSIX.1-2001, pax) that is compressed
// with zstd (RFC 8878): first the manifest, then the files that it lists, in that
// order, and nothing else.

// Bounds on what reading an archive takes of the host.
const (
	maxWindow = 8 << 20
	maxImage  = 1 << 42 // bytes of all files
	spareDisk = 64 << 20
)

// WriteArchive writes a complete image to w. Its files are compared with the
// manifest as they go: one that has changed ends the stream with an error.
func (s *Store) WriteArchive(ctx context.Context, w io.Writer, id sandbox.ID) error {
	m, err := s.Manifest(id)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(maxWindow), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return failed("cannot be compressed", id, err)
	}
	t := tar.NewWriter(z)
	b, err := readSmall(filepath.Join(s.Path(id), ManifestName))
	if err == nil {
		err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: ManifestName, Size: int64(len(b)), Mode: 0o600, Format: tar.FormatPAX})
	}
	if err == nil {
		_, err = t.Write(b)
	}
	for _, f := range m.Files {
		if err == nil {
			err = s.writeFile(ctx, t, id, f)
		}
	}
	if err == nil {
		err = errors.Join(t.Close(), z.Close())
	}
	if err != nil {
		return failed("cannot be exported", id, err)
	}
	return nil
}

func (s *Store) writeFile(ctx context.Context, t *tar.Writer, id sandbox.ID, f File) error {
	if err := check(f, s.Path(id), false); err != nil {
		return err
	}
	file, err := filesum.Open(filepath.Join(s.Path(id), f.Name))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Size: f.Size, Mode: 0o600, Format: tar.FormatPAX}); err != nil {
		return err
	}
	h := filesum.NewHash()
	if err := copyAll(ctx, io.MultiWriter(t, h), io.LimitReader(file, f.Size)); err != nil {
		return err
	}
	if h.Hex() != f.SHA256 {
		return damaged(s.Path(id), f.Name, "has changed since it was written")
	}
	return nil
}

// copyAll copies in large pieces until the end, or that of ctx.
func copyAll(ctx context.Context, w io.Writer, r io.Reader) error {
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// ReadArchive makes a draft of the archive in r, which may come from anybody, and
// returns its manifest. Who has signed it is for the caller to ask in accept,
// before anything is written; what accept changes is what is sealed. The files
// are those of the manifest, byte for byte, and all on disk; the draft is to be
// sealed or removed. When it fails nothing is left.
func (s *Store) ReadArchive(ctx context.Context, r io.Reader, accept func(m *Manifest) error) (_ *Manifest, err error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(8*maxWindow))
	if err != nil {
		return nil, badArchive("it is not compressed with zstd").WithCause(err)
	}
	defer z.Close()
	t := tar.NewReader(z)
	m, err := readManifest(t)
	if err != nil {
		return nil, err
	}
	if err := accept(m); err != nil {
		return nil, err
	}
	if err := s.room(m); err != nil {
		return nil, err
	}
	dir, err := s.Begin(m.ID())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Remove(m.ID()))
		}
	}()
	for _, f := range m.Files {
		if err := readFile(ctx, t, dir, f); err != nil {
			return nil, err
		}
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return nil, badArchive("something follows the last file")
	}
	if n, err := io.ReadFull(z, make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return nil, badArchive("something follows the end")
	}
	return m, nil
}

func readManifest(t *tar.Reader) (*Manifest, error) {
	h, err := t.Next()
	if err != nil || h.Typeflag != tar.TypeReg || h.Name != ManifestName || h.Size > maxManifest {
		return nil, badArchive("it does not begin with a manifest").WithCause(err)
	}
	b, err := io.ReadAll(io.LimitReader(t, maxManifest))
	if err != nil {
		return nil, badArchive("it is cut off or damaged").WithCause(err)
	}
	m, err := Parse(b)
	if err != nil {
		return nil, badArchive("its manifest " + err.Error())
	}
	return m, nil
}

// room tells whether the image fits on the disk, before anything is written.
func (s *Store) room(m *Manifest) error {
	var need int64
	for _, f := range m.Files {
		if f.Size > maxImage-need {
			return badArchive("it says that it holds more than any sandbox can")
		}
		need += f.Size
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return failed("cannot be written", m.ID(), err)
	}
	free := int64(min(st.Bavail, math.MaxInt64/uint64(st.Bsize))) * st.Bsize
	if need > free-spareDisk {
		return sandbox.Errorf(sandbox.ResourceExhausted, "the snapshot has %d MiB and the disk has %d MiB left", need>>20, free>>20).
			WithField("directory", s.dir).WithHint("make room: `belljar system df` tells what is there")
	}
	return nil
}

func readFile(ctx context.Context, t *tar.Reader, dir string, f File) (err error) {
	h, err := t.Next()
	if err != nil {
		return badArchive("it is cut off or damaged").WithCause(err)
	}
	if h.Typeflag != tar.TypeReg || h.Name != f.Name || h.Size != f.Size {
		return badArchive("it holds other files than its manifest says, or in another order")
	}
	file, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := filesum.NewHash()
	out := &sparse{file: file}
	if err := copyAll(ctx, io.MultiWriter(sum, out), t); err != nil {
		if full := failed("cannot be written", "", err); sandbox.KindOf(full) == sandbox.ResourceExhausted || ctx.Err() != nil {
			return full
		}
		return badArchive("it is cut off or damaged").WithCause(err)
	}
	if sum.Hex() != f.SHA256 {
		return badArchive("its file " + f.Name + " is not the one that was saved")
	}
	return errors.Join(out.end(), file.Sync())
}

// sparse writes a file and leaves out blocks of zeros.
type sparse struct {
	file *os.File
	size int64
}

// block is what is left out when it is all zeros.
const block = 64 << 10

var zeros [block]byte

func (s *sparse) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part := b[:min(len(b), block)]
		if string(part) != string(zeros[:len(part)]) {
			if _, err := s.file.WriteAt(part, s.size); err != nil {
				return 0, err
			}
		}
		s.size += int64(len(part))
		b = b[len(part):]
	}
	return n, nil
}

// end gives the file its size.
func (s *sparse) end() error { return s.file.Truncate(s.size) }

func badArchive(how string) *sandbox.Error {
	return sandbox.Errorf(sandbox.Invalid, "this is no snapshot that could be loaded: %s", how).WithField("archive", "").
		WithHint("`belljar snapshot save` makes such an archive")
}
