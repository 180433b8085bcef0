package outlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// Offsets are bytes of the two streams of a process.
type Offsets struct{ Stdout, Stderr int64 }

// CopyTo writes the log to w as frames, from the given bytes on, with a gap
// frame where bytes are missing. With follow it goes on until the exit has been
// written, the log is closed or ctx ends. flush is called whenever w has all
// there is.
func (l *Log) CopyTo(ctx context.Context, w io.Writer, from Offsets, follow bool, flush func() error) error {
	c := &copier{l: l, w: w, next: -1, at: [3]int64{wire.Stdout: from.Stdout, wire.Stderr: from.Stderr}}
	for {
		segs, size, more, changed := l.state()
		for i, s := range segs {
			limit := int64(-1) // a segment that is not the last is complete
			if i == len(segs)-1 {
				limit = size
			}
			if err := c.segment(s, limit); err != nil {
				return err
			}
		}
		if err := flush(); err != nil {
			return err
		}
		if !follow || !more {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// copier remembers how far it has come.
type copier struct {
	l    *Log
	w    io.Writer
	at   [3]int64
	next int64 // index of the segment at work; -1: none yet
	done int64 // bytes of it that have been copied
}

// segment copies what is new of one segment, up to limit bytes of it.
func (c *copier) segment(s segment, limit int64) error {
	if s.index < c.next {
		return nil
	}
	if s.index > c.next {
		c.next, c.done = s.index, 0
		b := gap(gap(nil, wire.Stdout, c.at[wire.Stdout], s.stdout), wire.Stderr, c.at[wire.Stderr], s.stderr)
		if _, err := c.w.Write(b); err != nil {
			return err
		}
		c.at[wire.Stdout], c.at[wire.Stderr] = max(c.at[wire.Stdout], s.stdout), max(c.at[wire.Stderr], s.stderr)
	}
	if c.done == limit {
		return nil
	}
	f, err := os.Open(filepath.Join(c.l.dir, s.name()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile: the next segment shows the gap
	}
	if err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(c.done, io.SeekStart); err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	var src io.Reader = f
	if limit >= 0 {
		src = io.LimitReader(f, limit-c.done)
	}
	return c.frames(bufio.NewReaderSize(src, 256<<10))
}

func (c *copier) frames(r *bufio.Reader) error {
	buf := make([]byte, wire.HeaderLen+wire.MaxPayload)
	for {
		f, err := wire.ReadFrame(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("outlog: %w", err)
		}
		b := buf[wire.HeaderLen : wire.HeaderLen+int(f.Len)]
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("outlog: %w", err)
		}
		c.done += wire.HeaderLen + int64(f.Len)
		if err := c.frame(f, b, buf); err != nil {
			return err
		}
	}
}

// frame copies one frame, but for bytes that the reader has had. The payload b
// lies in buf behind the place of a head.
func (c *copier) frame(f wire.Frame, b, buf []byte) error {
	if f.Type != wire.FrameData && f.Type != wire.FrameGap {
		f.Put(buf)
		_, err := c.w.Write(buf[:wire.HeaderLen+len(b)])
		return err
	}
	at, end := &c.at[f.Stream], after(f, b)
	if end <= *at {
		return nil
	}
	if f.Type == wire.FrameGap {
		b = gap(nil, f.Stream, *at, end)
		*at = end
		_, err := c.w.Write(b)
		return err
	}
	if lost := gap(nil, f.Stream, *at, int64(f.Offset)); len(lost) > 0 {
		if _, err := c.w.Write(lost); err != nil {
			return err
		}
		*at = int64(f.Offset)
	}
	had := int(*at - int64(f.Offset))
	f.Offset, f.Len = uint64(*at), uint32(len(b)-had)
	f.Put(buf[had:]) // right before the bytes that are left
	*at = end
	_, err := c.w.Write(buf[had : wire.HeaderLen+len(b)])
	return err
}
