package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// Prepared is what [Place] does, in two steps: all has been unpacked beside where
// it goes, and nothing has been put there. It is for one goroutine and must be
// closed.
type Prepared struct {
	Summary Summary

	target *target
	temp   *temp
	from   item
}

// Prepare is the first step. After an error nothing is left, and what it returns
// besides has the summary alone, or is nil.
func Prepare(ctx context.Context, dst string, r io.Reader, o Options) (_ *Prepared, err error) {
	t, err := findTarget(dst)
	if err != nil {
		return nil, err
	}
	p := &Prepared{target: t}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.temp, err = newTemp(t.dir); err != nil {
		return p, placeError(dst, err)
	}
	o.single = true
	if p.Summary, err = Unpack(ctx, p.temp.f, r, o); err != nil {
		return p, err
	}
	p.from = item{dir: int(p.temp.f.Fd()), name: p.Summary.top}
	if p.Summary.Root {
		p.from = item{dir: p.temp.parent, name: p.temp.name}
	} else if p.Summary.top == "" {
		return p, sandbox.Errorf(sandbox.Invalid, "the archive is empty")
	}
	return p, nil
}

// Place is the second step and returns the path that it came to lie at. Once only.
func (p *Prepared) Place() (string, error) { return p.target.put(p.from, p.Summary.Root) }

// Close removes what has not been placed.
func (p *Prepared) Close() {
	if p.temp != nil {
		p.temp.remove()
	}
	p.target.dir.Close()
}

// Change is one file that a [Prepared.Place] would make or replace.
type Change struct {
	Path string // absolute, or beneath the destination as it was written; as hostile as the archive
	// New tells that there is nothing yet of that name.
	New bool
	// Dir tells that it is a directory, which is new.
	Dir bool
}

// Changes tells what Place would do now, sorted by path: files and links that are
// there already with the same content are none of it. What cannot be placed is
// the error that Place would return.
func (p *Prepared) Changes(ctx context.Context) ([]Change, error) {
	c := &comparison{ctx: ctx}
	to := item{dir: int(p.target.dir.Fd()), name: p.target.name}
	var err error
	switch {
	case to.name == "" && p.Summary.Root:
		err = p.from.within(func(dir int) error { return c.all(dir, to.dir, p.target.path) })
	case to.name == "":
		to.name = p.from.name
		fallthrough
	default:
		err = c.one(p.from, to, filepath.Join(p.target.path, to.name))
	}
	slices.SortFunc(c.out, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return c.out, err
}

type comparison struct {
	ctx context.Context
	out []Change
}

// all compares what is in the directory from with the directory to, -1 for none.
func (c *comparison) all(from, to int, at string) error {
	names, err := readNames(from)
	if err != nil {
		return placeError(at, err)
	}
	for _, n := range names {
		if err := c.one(item{from, n}, item{to, n}, path.Join(at, n)); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) one(from, to item, at string) error {
	if err := ctxError(c.ctx); err != nil {
		return err
	}
	kind, old := from.kind(), uint32(0)
	if to.dir >= 0 {
		old = to.kind()
	}
	if kind != unix.S_IFDIR || old != unix.S_IFDIR {
		if to.dir >= 0 {
			if err := from.check(to); err != nil {
				return err
			}
		}
		if old == 0 || !same(from, to, kind, old) {
			c.out = append(c.out, Change{Path: at, New: old == 0, Dir: kind == unix.S_IFDIR})
		}
	}
	if kind != unix.S_IFDIR {
		return nil
	}
	return from.within(func(dir int) error {
		if old == 0 {
			return c.all(dir, -1, at)
		}
		return to.within(func(into int) error { return c.all(dir, into, at) })
	})
}

// same reports whether two files, or two links, have the same content.
func same(a, b item, kind, old uint32) bool {
	switch {
	case kind != old:
		return false
	case kind == unix.S_IFLNK:
		return linkOf(a) == linkOf(b)
	case kind == unix.S_IFREG:
		return sameFile(a, b)
	}
	return false
}

func linkOf(it item) string {
	buf := make([]byte, sandbox.MaxPath)
	n, err := unix.Readlinkat(it.dir, it.name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func sameFile(a, b item) bool {
	x, err := openFile(a)
	if err != nil {
		return false
	}
	defer x.Close()
	y, err := openFile(b)
	if err != nil {
		return false
	}
	defer y.Close()
	xi, xerr := x.Stat()
	yi, yerr := y.Stat()
	if xerr != nil || yerr != nil || !yi.Mode().IsRegular() || xi.Size() != yi.Size() || xi.Mode() != yi.Mode() {
		return false
	}
	xb, yb := make([]byte, copyBuffer), make([]byte, copyBuffer)
	for {
		n, xerr := io.ReadFull(x, xb)
		m, yerr := io.ReadFull(y, yb)
		if !bytes.Equal(xb[:n], yb[:m]) {
			return false
		}
		if xerr != nil || yerr != nil {
			return atEnd(xerr) && atEnd(yerr)
		}
	}
}

func atEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func openFile(it item) (*os.File, error) {
	fd, err := openat(it.dir, it.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), it.name), nil
}
