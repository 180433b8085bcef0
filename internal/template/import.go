package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/sandbox"
)

// ImportOptions says how to import. The zero value is strict.
type ImportOptions struct {
	// SkipDevices leaves device nodes out instead of refusing the archive.
	SkipDevices bool
	// NoSetuid drops set-user-ID and set-group-ID bits, so sudo will not work.
	NoSetuid bool
	// Limits bounds what is unpacked; zero fields are [archive.DefaultLimits].
	Limits archive.Limits
	// Progress, when set, is told now and then how far the work is.
	Progress func(archive.Progress)

	kind     string // default KindImported
	packages []string
}

// Import makes the template name from src, a directory or a tar archive (plain,
// gzip or zstd). It is unpacked by the calling process with its own rights; run
// by root owners are kept, else everything will seem to belong to root inside.
// The archive is hostile: see package archive for what is refused. A user
// "user" and the directories that every sandbox needs are added. A name that is
// taken is [sandbox.AlreadyExists]; on any error nothing is left.
func (s *Store) Import(ctx context.Context, name, src string, o ImportOptions) (*Details, error) {
	if err := s.checkFree(name); err != nil {
		return nil, err
	}
	f, isDir, err := openSource(src)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !isDir {
		return s.ImportStream(ctx, name, f, o)
	}
	return s.importDir(ctx, name, f, o)
}

// openSource opens what is imported; an archive may come through a FIFO too.
func openSource(src string) (*os.File, bool, error) {
	info, err := os.Stat(src)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 {
		return nil, false, sandbox.Errorf(sandbox.Invalid, "this is neither a directory nor an archive").WithField("source", src)
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(src)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, sandbox.Errorf(sandbox.NotFound, "no such file or directory").WithField("source", src)
	case err != nil:
		return nil, false, sandbox.Errorf(sandbox.Denied, "it cannot be opened: %w", err).WithField("source", src)
	}
	return f, info.IsDir(), nil
}

func (s *Store) checkFree(name string) error {
	if err := checkNew(name); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(s.dir, name)); err == nil {
		return sandbox.Errorf(sandbox.AlreadyExists, "the name is taken").WithField("template", name).
			WithHint("remove it first with `belljar template rm %s`, or choose another name", name)
	}
	return nil
}

// importDir packs the directory into a pipe and imports from there, so that
// both ways pass the same filter.
func (s *Store) importDir(ctx context.Context, name string, dir *os.File, o ImportOptions) (*Details, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := config.Private(s.dir); err != nil {
		return nil, err
	}
	own, err := os.Stat(s.dir)
	if err != nil {
		return nil, storeError("stat", err)
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := archive.PackFile(ctx, w, dir, archive.PackOptions{
			Name: ".", OneFileSystem: true, Strict: true, Owners: true, Special: true, Exclude: []os.FileInfo{own},
		})
		w.CloseWithError(err)
		packed <- err
	}()
	d, err := s.ImportStream(ctx, name, r, o)
	r.Close()
	if perr := <-packed; err == nil && perr != nil {
		return nil, perr
	}
	return d, err
}

// ImportStream is [Store.Import] from a stream. It returns soon after ctx ends
// unless a Read of r blocks.
func (s *Store) ImportStream(ctx context.Context, name string, r io.Reader, o ImportOptions) (*Details, error) {
	if err := s.checkFree(name); err != nil {
		return nil, err
	}
	w, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer w.end()
	d, err := w.unpack(ctx, name, r, o)
	if err != nil {
		return nil, err
	}
	if err := furnish(w.path(rootName), d.Shifted, d.Setuid); err != nil {
		return nil, err
	}
	if err := w.writeRecord(d); err != nil {
		return nil, err
	}
	if err := w.commit(ctx, name); err != nil {
		if sandbox.KindOf(err) == sandbox.AlreadyExists {
			return nil, sandbox.Errorf(sandbox.AlreadyExists, "the name was taken meanwhile").WithField("template", name)
		}
		return nil, err
	}
	return d, nil
}

// unpack unpacks r as the root of the work and describes it.
func (w *work) unpack(ctx context.Context, name string, r io.Reader, o ImportOptions) (*Details, error) {
	if err := os.Mkdir(w.path(rootName), 0o755); err != nil {
		return nil, storeError("mkdir", err)
	}
	root, err := os.Open(w.path(rootName))
	if err != nil {
		return nil, storeError("open", err)
	}
	defer root.Close()
	asRoot := canChown()
	uo := archive.Options{
		Limits: o.Limits, Links: archive.LinksRooted, Owners: asRoot, Setuid: asRoot && !o.NoSetuid, Sticky: true, Progress: o.Progress,
	}
	if o.SkipDevices {
		uo.Devices = archive.DevicesSkip
	}
	sum := sha256.New()
	got, err := archive.Unpack(ctx, root, io.TeeReader(r, sum), uo)
	if err != nil {
		return nil, hintDevices(err)
	}
	if got.Entries == 0 || got.Entries == 1 && got.Root {
		return nil, sandbox.Errorf(sandbox.Invalid, "there is nothing in it").WithField("template", name)
	}
	return describe(name, got, sum, uo, o), nil
}

func describe(name string, got archive.Summary, sum hash.Hash, uo archive.Options, o ImportOptions) *Details {
	if o.kind == "" {
		o.kind = KindImported
	}
	return &Details{
		Template: sandbox.Template{
			Name: name, Kind: o.kind, CreatedAt: time.Now().UTC().Truncate(time.Second), SizeBytes: got.Bytes,
			Setuid: uo.Setuid, Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)),
		},
		Version: recordVersion, Shifted: uo.Owners,
		Entries: got.Entries, Skipped: got.Skipped, Skips: got.Skips, Packages: o.packages,
	}
}

// hintDevices tells whoever imports a whole system how to go on.
func hintDevices(err error) error {
	var own *sandbox.Error
	if errors.Is(err, archive.ErrDevice) && errors.As(err, &own) {
		return own.WithHint("sandboxes have devices of their own: pass --skip-devices, or archive it without ./dev/*")
	}
	return err
}
