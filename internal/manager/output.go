package manager

import (
	"context"
	"io"
	"net"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/relay"
	"github.com/belljar-sh/belljar/sandbox"
)

// outputBody is a stream of output on its way through.
type outputBody struct {
	body   io.ReadCloser
	scan   scanner
	err    error
	closed func()
}

// Read returns what has come. The bytes of a broken frame are not returned.
func (b *outputBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	if serr := b.scan.feed(p[:n]); serr != nil {
		b.err = serr
		return 0, serr
	}
	if err == io.EOF && (!b.scan.ended || b.scan.left > 0) {
		err = io.ErrUnexpectedEOF
	}
	if b.scan.ended && err == nil {
		err = io.EOF // the guest may be slow to end the stream
	}
	b.err = err
	return n, err
}

func (b *outputBody) Close() error {
	if b.closed != nil {
		b.closed()
		b.closed = nil
	}
	return b.body.Close()
}

// source returns where the stream comes from, when it can be moved.
func (b *outputBody) source() (s relay.Source, ok bool) {
	if r, can := b.body.(relayed); can {
		s, ok = r.Source()
	}
	return s, ok && s.Length < 0
}

// CanRelay reports whether RelayTo can take the place of Read.
func (b *outputBody) CanRelay() bool {
	_, ok := b.source()
	return ok
}

// RelayTo writes head to dst and then the whole stream, checked as by Read.
// Large payloads are moved and not copied.
func (b *outputBody) RelayTo(ctx context.Context, dst *net.UnixConn, head []byte) error {
	src, ok := b.source()
	if !ok {
		return sandbox.Errorf(sandbox.Internal, "this stream can only be read")
	}
	return src.SendFrames(ctx, dst, head, &b.scan)
}

// Feed, Bulk, Skip and Ended let a relay do the reading.

// Feed is feed.
func (s *scanner) Feed(p []byte) error { return s.feed(p) }

// Bulk returns how many bytes of data come next.
func (s *scanner) Bulk() int64 {
	if s.frame.Type != guest.FrameData {
		return 0
	}
	return int64(s.left)
}

// Skip takes note that what Bulk told of has gone by.
func (s *scanner) Skip() error {
	s.left = 0
	return s.complete()
}

// Ended reports whether the process's exit has gone by.
func (s *scanner) Ended() bool { return s.ended }
