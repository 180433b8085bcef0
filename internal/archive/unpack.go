package archive

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// Unpack unpacks the tar stream r (plain, gzip or zstd, told by its first
// bytes) beneath dir, which should be empty and nobody else's. On an error
// what was unpacked so far is still there: the caller removes dir. It returns
// soon after ctx ends unless a Read of r blocks; close r then.
//
// Errors are [*sandbox.Error]: Invalid for what the archive should not hold,
// with the entry as field; ResourceExhausted for limits and a full disk.
func Unpack(ctx context.Context, dir *os.File, r io.Reader, o Options) (Summary, error) {
	o.Limits = o.Limits.withDefaults()
	m := &meter{limits: o.Limits}
	stream, err := decompress(ctx, r, m)
	if err != nil {
		return Summary{}, err
	}
	defer stream.Close()
	u := &unpacker{
		ctx: ctx, root: int(dir.Fd()), o: o, m: m, parent: -1,
		stream: &countStream{ctx: ctx, r: stream, m: m},
		buf:    make([]byte, copyBuffer),
		now:    time.Now(),
		ticker: ticker{report: o.Progress},

		dirIndex: map[string]int{},
		leftOut:  map[string]bool{},
		single:   o.single,
	}
	u.tar = tar.NewReader(u.stream)
	defer u.closeParent()
	err = u.run()
	u.sum.Entries, u.sum.Bytes, u.sum.top = m.entries, m.content, u.top
	return u.sum, err
}

type unpacker struct {
	ctx    context.Context
	root   int
	o      Options
	m      *meter
	stream *countStream
	tar    *tar.Reader
	buf    []byte
	now    time.Time
	sum    Summary
	ticker ticker
	last   string

	parentName string // of the directory that parent is open on
	parent     int    // -1: none
	dirs       []dirMeta
	dirIndex   map[string]int  // into dirs
	leftOut    map[string]bool // links that were

	single bool   // everything lies below one top name, see Options.single
	top    string // that name; "" before the first entry
}

// dirMeta is applied to a directory when everything is in it.
type dirMeta struct {
	name string
	meta meta
}

func (u *unpacker) run() error {
	for {
		hdr, err := u.tar.Next()
		if err == io.EOF {
			break
		}
		if err != nil && !(errors.Is(err, tar.ErrInsecurePath) && hdr != nil) {
			return readError(err, u.last)
		}
		if err := u.entry(hdr); err != nil {
			return err
		}
		u.last = hdr.Name
		u.ticker.tick(Progress{u.m.entries, u.m.content, hdr.Name}, false)
	}
	if err := u.finish(); err != nil {
		return err
	}
	u.ticker.tick(Progress{u.m.entries, u.m.content, ""}, true)
	return nil
}

// finish checks that the stream ended where it should and gives directories
// their modes and times, deepest last made first.
func (u *unpacker) finish() error {
	if u.stream.zeros < blockSize {
		return readError(io.ErrUnexpectedEOF, u.last)
	}
	n, err := io.CopyBuffer(io.Discard, io.LimitReader(u.stream, maxTrailer), u.buf)
	if err != nil {
		return readError(err, u.last) // a checksum that does not match, for instance
	}
	if n == maxTrailer {
		return refuse(u.last, "much data follows the end of the archive")
	}
	for _, d := range slices.Backward(u.dirs) {
		if err := ctxError(u.ctx); err != nil {
			return err
		}
		if err := u.finishDir(d); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) finishDir(d dirMeta) error {
	parts := strings.Split(d.name, "/")
	if d.name == "" {
		parts = nil
	}
	fd, err := openBeneath(u.root, parts, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return placeError(d.name, err)
	}
	defer unix.Close(fd)
	return placeError(d.name, d.meta.apply(fd))
}

func (u *unpacker) entry(hdr *tar.Header) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return u.m.entry(hdr.Name, 0)
	}
	size := hdr.Size
	if !isRegular(hdr.Typeflag) {
		size = 0
	}
	if err := u.m.entry(hdr.Name, size); err != nil {
		return err
	}
	parts, err := splitName(hdr.Name, u.m.limits.Depth)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return u.rootEntry(hdr)
	}
	if err := u.checkTop(hdr.Name, parts); err != nil {
		return err
	}
	if err := u.checkBehind(hdr.Name, parts); err != nil {
		return err
	}
	switch t := hdr.Typeflag; {
	case t == tar.TypeDir:
		return u.dir(hdr, parts)
	case isRegular(t):
		return u.file(hdr, parts)
	case t == tar.TypeSymlink:
		return u.symlink(hdr, parts)
	case t == tar.TypeLink:
		return u.hardlink(hdr, parts)
	case t == tar.TypeChar, t == tar.TypeBlock:
		if u.o.Devices == DevicesRefuse {
			return refuse(hdr.Name, "the archive holds a device node").
				WithHint("leave it out: tar --exclude=./dev/* -cf FILE .").WithCause(ErrDevice)
		}
		u.sum.skip(hdr.Name, "a device node")
		return nil
	case t == tar.TypeFifo:
		u.sum.skip(hdr.Name, "a FIFO")
		return nil
	default:
		return refuse(hdr.Name, "an entry is of the unknown kind %q", string(hdr.Typeflag))
	}
}

func isRegular(t byte) bool {
	return t == tar.TypeReg || t == 0 || t == tar.TypeCont || t == tar.TypeGNUSparse
}

func (u *unpacker) rootEntry(hdr *tar.Header) error {
	if hdr.Typeflag != tar.TypeDir {
		return refuse(hdr.Name, "the entry for the tree itself is not a directory")
	}
	u.sum.Root = true
	if u.top == "" {
		u.single = false
	}
	u.rememberDir(nil, u.metaOf(hdr))
	return nil
}

// rememberDir notes what a directory is given at the end; a later entry for it
// counts.
func (u *unpacker) rememberDir(parts []string, m meta) {
	name := strings.Join(parts, "/")
	if i, ok := u.dirIndex[name]; ok {
		u.dirs[i].meta = m
		return
	}
	u.dirIndex[name] = len(u.dirs)
	u.dirs = append(u.dirs, dirMeta{name, m})
}

// level returns how deep below the top of the tree the directory is that the
// entry lies in, which in a single tree is one less.
func (u *unpacker) level(parts []string) int {
	if u.single {
		return len(parts) - 2
	}
	return len(parts) - 1
}

func (u *unpacker) checkTop(name string, parts []string) error {
	if u.top == "" {
		u.top = parts[0]
	}
	if u.single && parts[0] != u.top {
		return refuse(name, "an entry lies beside the one file or directory that was asked for")
	}
	return nil
}

// openParent opens the directory that the entry goes into and makes it when
// the archive has no entry for it. The last one is kept open: archives list a
// directory's entries together.
func (u *unpacker) openParent(name string, parts []string) (int, error) {
	up := strings.Join(parts[:len(parts)-1], "/")
	if u.parent >= 0 && up == u.parentName {
		return u.parent, nil
	}
	fd, err := mkdirsBeneath(u.root, parts[:len(parts)-1], func(made []string) {
		u.rememberDir(made, meta{mode: 0o755 &^ u.o.Umask, owners: u.o.Owners, time: u.now})
	})
	if err != nil {
		return -1, placeError(name, err)
	}
	u.closeParent()
	u.parent, u.parentName = fd, up
	return fd, nil
}

func (u *unpacker) closeParent() {
	if u.parent >= 0 {
		unix.Close(u.parent)
		u.parent = -1
	}
}

func (u *unpacker) dir(hdr *tar.Header, parts []string) error {
	parent, err := u.openParent(hdr.Name, parts)
	if err != nil {
		return err
	}
	last := parts[len(parts)-1]
	if err := unix.Mkdirat(parent, last, 0o700); err != nil {
		if !errors.Is(err, unix.EEXIST) {
			return placeError(hdr.Name, err)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(parent, last, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return placeError(hdr.Name, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return refuse(hdr.Name, "a directory has the name of an earlier entry that is none")
		}
	}
	u.rememberDir(parts, u.metaOf(hdr))
	return nil
}

// create makes something new at the name. An earlier entry of that name that
// is not a directory is replaced, never written through.
func (u *unpacker) create(hdr *tar.Header, parts []string, make func(parent int, last string) error) error {
	parent, err := u.openParent(hdr.Name, parts)
	if err != nil {
		return err
	}
	last := parts[len(parts)-1]
	err = make(parent, last)
	if errors.Is(err, unix.EEXIST) {
		if err := unix.Unlinkat(parent, last, 0); err != nil {
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
				return refuse(hdr.Name, "an entry has the name of an earlier directory")
			}
			return placeError(hdr.Name, err)
		}
		err = make(parent, last)
	}
	return placeError(hdr.Name, err)
}

func (u *unpacker) symlink(hdr *tar.Header, parts []string) error {
	if err := checkTarget(hdr.Name, hdr.Linkname); err != nil {
		return err
	}
	if out, why := linkEscapes(u.level(parts), hdr.Linkname, u.o.Links == LinksRooted); out {
		if u.o.Links == LinksSkip {
			return u.leaveOut(hdr, parts, why)
		}
		return refuse(hdr.Name, "%s: %q", why, hdr.Linkname).
			WithHint("links must stay inside the archive; remove it or make it relative")
	}
	return u.create(hdr, parts, func(parent int, last string) error {
		if err := unix.Symlinkat(hdr.Linkname, parent, last); err != nil {
			return err
		}
		return u.metaOf(hdr).applyLink(parent, last)
	})
}

// maxLeftOut bounds how many links are left out and remembered.
const maxLeftOut = 100_000

// leaveOut skips a link. It is remembered: what an archive has behind a link
// does not belong into a directory of its name.
func (u *unpacker) leaveOut(hdr *tar.Header, parts []string, why string) error {
	if len(u.leftOut) >= maxLeftOut {
		return exceeded("links that lead out", maxLeftOut, hdr.Name)
	}
	u.leftOut[strings.Join(parts, "/")] = true
	u.sum.skip(hdr.Name, why+": "+hdr.Linkname)
	return nil
}

// checkBehind refuses an entry behind a link that was left out.
func (u *unpacker) checkBehind(name string, parts []string) error {
	if len(u.leftOut) == 0 {
		return nil
	}
	for i := 1; i < len(parts); i++ {
		if u.leftOut[strings.Join(parts[:i], "/")] {
			return refuse(name, "the entry lies behind a link that leads out")
		}
	}
	return nil
}

// hardlink links to an earlier regular file of the same tree, by descriptor.
func (u *unpacker) hardlink(hdr *tar.Header, parts []string) error {
	target, err := splitName(hdr.Linkname, u.m.limits.Depth)
	if err != nil || len(target) == 0 {
		return refuse(hdr.Name, "a hard link points outside or at nothing: %q", hdr.Linkname)
	}
	if slices.Equal(target, parts) {
		return refuse(hdr.Name, "a hard link points at itself")
	}
	fd, err := openBeneath(u.root, target, unix.O_PATH, 0)
	if err != nil {
		return refuse(hdr.Name, "a hard link points at what no earlier entry made: %q", hdr.Linkname).WithCause(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return placeError(hdr.Name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return refuse(hdr.Name, "a hard link points at what is not a file: %q", hdr.Linkname)
	}
	return u.create(hdr, parts, func(parent int, last string) error {
		return unix.Linkat(unix.AT_FDCWD, procPath(fd), parent, last, unix.AT_SYMLINK_FOLLOW)
	})
}

// placeError puts a failed system call into a sentence that names the entry.
func placeError(name string, err error) error {
	if err == nil {
		return nil
	}
	if own := (*sandbox.Error)(nil); errors.As(err, &own) {
		return own
	}
	name = path.Clean("/" + name)[1:]
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EAGAIN):
		return refuse(name, "the entry lies behind a link or below a file, not in a directory of the archive").WithCause(err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return sandbox.Errorf(sandbox.ResourceExhausted, "no space is left to unpack").WithField("entry", name).
			WithHint("free some space; nothing was kept").WithCause(err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return refuse(name, "the name of an entry is too long for this file system").WithCause(err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return sandbox.Errorf(sandbox.Denied, "the entry cannot be written: %w", err).WithField("entry", name)
	default:
		return sandbox.Errorf(sandbox.Internal, "the entry cannot be written: %w", err).WithField("entry", name)
	}
}
