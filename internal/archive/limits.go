package archive

import (
	"context"
	"io"

	"github.com/belljar-sh/belljar/sandbox"
)

// Limits bounds what one stream may unpack to. A zero field means the default.
type Limits struct {
	Entries int64 // entries of any kind
	Bytes   int64 // content of regular files, holes included
	Depth   int   // components of a name
	Ratio   int64 // growth: bytes that come out per byte that went in
}

// DefaultLimits suit a root file system of any sensible size.
func DefaultLimits() Limits {
	return Limits{Entries: 2_000_000, Bytes: 64 << 30, Depth: 256, Ratio: 200}
}

// ratioGrace is how much may come out before the ratio is looked at: short
// archives of empty files grow by a lot.
const ratioGrace = 256 << 20

// Bounds on what is not content: headers of entries, and padding after the end.
const (
	overheadGrace    = 64 << 20
	overheadPerEntry = 64 << 10
	maxTrailer       = 64 << 20
)

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.Entries == 0 {
		l.Entries = d.Entries
	}
	if l.Bytes == 0 {
		l.Bytes = d.Bytes
	}
	if l.Depth == 0 {
		l.Depth = d.Depth
	}
	if l.Ratio == 0 {
		l.Ratio = d.Ratio
	}
	return l
}

// meter counts one stream and refuses what exceeds its limits.
type meter struct {
	limits  Limits
	in      int64 // bytes taken from the source
	stream  int64 // bytes of tar stream after decompression
	content int64 // bytes of regular files
	entries int64
}

func exceeded(what string, limit int64, field string) *sandbox.Error {
	return sandbox.Errorf(sandbox.ResourceExhausted, "the archive holds more than %d %s", limit, what).
		WithField("entry", field).
		WithHint("unpack a smaller archive, or raise the limit")
}

// entry counts an entry with size bytes of content before they are read.
func (m *meter) entry(name string, size int64) error {
	m.entries++
	if m.entries > m.limits.Entries {
		return exceeded("entries", m.limits.Entries, name)
	}
	if size < 0 || size > m.limits.Bytes-m.content {
		return exceeded("bytes", m.limits.Bytes, name)
	}
	return nil
}

// wrote counts content.
func (m *meter) wrote(name string, n int64) error {
	m.content += n
	return m.checkRatio(name, m.content)
}

func (m *meter) checkRatio(name string, out int64) error {
	if out > ratioGrace && out/m.limits.Ratio > m.in {
		return sandbox.Errorf(sandbox.ResourceExhausted, "the archive grows by more than %d times", m.limits.Ratio).
			WithField("entry", name).
			WithHint("such archives are made to fill disks; decompress it yourself if you trust it")
	}
	return nil
}

// countIn counts what the source gives and stops when ctx ends.
type countIn struct {
	ctx context.Context
	r   io.Reader
	m   *meter
}

func (c *countIn) Read(p []byte) (int, error) {
	if err := ctxError(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.m.in += int64(n)
	return n, err
}

// countStream counts the tar stream, so that headers without entries and
// endless padding end too, and remembers how many zero bytes it ended with.
type countStream struct {
	ctx   context.Context
	r     io.Reader
	m     *meter
	zeros int64
}

func (c *countStream) Read(p []byte) (int, error) {
	if err := ctxError(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.m.stream += int64(n)
	c.trail(p[:n])
	overhead := c.m.stream - c.m.content
	if overhead > overheadGrace+c.m.entries*overheadPerEntry {
		return n, exceeded("bytes of headers", overhead, "")
	}
	if rerr := c.m.checkRatio("", c.m.stream); rerr != nil {
		return n, rerr
	}
	return n, err
}

func (c *countStream) trail(p []byte) {
	i := len(p)
	for i > 0 && p[i-1] == 0 && len(p)-i < blockSize {
		i--
	}
	if i == 0 || len(p)-i >= blockSize {
		c.zeros += int64(len(p) - i)
		return
	}
	c.zeros = int64(len(p) - i)
}

func ctxError(ctx context.Context) error {
	switch err := ctx.Err(); err {
	case nil:
		return nil
	case context.DeadlineExceeded:
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the time allowed is over").WithCause(err)
	default:
		return sandbox.Errorf(sandbox.Canceled, "canceled").WithCause(err)
	}
}
