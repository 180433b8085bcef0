package archive

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// content writes exactly size bytes of the open file: what was cut off it
// meanwhile is zero, what was added is left out.
func (p *packer) content(fd int, full string, size int64) error {
	var at int64
	for at < size {
		if err := ctxError(p.ctx); err != nil {
			return err
		}
		n, err := p.chunk(fd, at, size, full)
		if err != nil {
			return err
		}
		at += n
		p.sum.Bytes += n
		p.ticker.tick(Progress{p.sum.Entries, p.sum.Bytes, full}, false)
	}
	return nil
}

// chunk writes the next bytes of the file, which are a hole or data.
func (p *packer) chunk(fd int, at, size int64, full string) (int64, error) {
	data, err := unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		data = size // the rest is a hole, or gone
	case err != nil:
		data = at // a file system that knows no holes
	}
	if hole := min(data, size) - at; hole > 0 {
		return p.zeros(hole)
	}
	n, err := pread(fd, p.buf[:min(size-at, int64(len(p.buf)))], at)
	if err == nil && n == 0 {
		err = errCutOff
	}
	if err != nil {
		if err := p.fault(full, err); err != nil {
			return 0, err
		}
		return p.zeros(size - at)
	}
	if _, err := p.tw.Write(p.buf[:n]); err != nil {
		return 0, writeError(err)
	}
	return int64(n), nil
}

// zeros writes n zero bytes.
func (p *packer) zeros(n int64) (int64, error) {
	for left := n; left > 0; {
		if err := ctxError(p.ctx); err != nil {
			return 0, err
		}
		w, err := p.tw.Write(zeros[:min(left, int64(len(zeros)))])
		if err != nil {
			return 0, writeError(err)
		}
		left -= int64(w)
	}
	return n, nil
}

func pread(fd int, b []byte, at int64) (int, error) {
	for {
		n, err := unix.Pread(fd, b, at)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}
