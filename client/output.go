package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// ChunkKind tells what a [Chunk] is.
type ChunkKind uint8

// The kinds of chunk.
const (
	ChunkData ChunkKind = iota + 1 // Data stands at Offset of Stream
	ChunkGap                       // Lost bytes of Stream are missing from Offset on
	ChunkExit                      // the process has ended; the last chunk of it
)

// Chunk is one piece of output.
type Chunk struct {
	Kind   ChunkKind
	Stream StreamID
	Offset int64
	Data   []byte // valid until the next call of Next
	Lost   int64
	Exit   sandbox.Exit
}

// Output is a stream of output. It is for one goroutine, but Close may be
// called by another.
type Output struct {
	ctx  context.Context
	body io.ReadCloser
	r    *bufio.Reader
	held int // bytes of r that the last chunk points into
	done bool
}

// outputBuffer lets one read from the connection take several frames.
const outputBuffer = 512 << 10

func newOutput(ctx context.Context, body io.ReadCloser) *Output {
	return &Output{ctx: ctx, body: body, r: bufio.NewReaderSize(&reader{ctx, body}, outputBuffer)}
}

// Next returns the next piece, io.EOF after the last. A stream that breaks
// off before its exit chunk is an error, not an end.
func (o *Output) Next() (Chunk, error) {
	if o.done {
		return Chunk{}, io.EOF
	}
	for {
		f, payload, err := o.frame()
		if err != nil {
			return Chunk{}, err
		}
		c, skip, err := decodeChunk(f, payload)
		if err != nil {
			return Chunk{}, sandbox.Errorf(sandbox.Internal, "the output stream is not what the API promises: %w", err)
		}
		if skip {
			continue
		}
		o.done = c.Kind == ChunkExit
		return c, nil
	}
}

// frame reads the next frame. Its payload is valid until the next call.
func (o *Output) frame() (f wire.Frame, payload []byte, err error) {
	if err = o.release(); err == nil {
		f, err = wire.ReadFrame(o.r)
	}
	if err == nil {
		payload, err = o.payload(f)
	}
	if err != nil {
		err = streamError(o.ctx, err)
	}
	return f, payload, err
}

// process reads the frame that goes before the output of a process that was
// started and attached to in one.
func (o *Output) process() (p Process, err error) {
	f, err := wire.ReadFrame(o.r)
	if err != nil {
		return p, streamError(o.ctx, err)
	}
	b, err := o.payload(f)
	if err != nil {
		return p, streamError(o.ctx, err)
	}
	if f.Type != wire.FrameJSON || json.Unmarshal(b, &p) != nil {
		return p, sandbox.Errorf(sandbox.Internal, "the output does not begin with its process, as the API promises")
	}
	return p, nil
}

// streamError tells a broken connection, after which a reader may attach
// again, from bytes that no Belljar sends.
func streamError(ctx context.Context, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return transportError(ctx, io.ErrUnexpectedEOF)
	}
	return sandbox.Errorf(sandbox.Internal, "the stream is not what the API promises: %w", err)
}

// payload returns the payload of a frame where it lies in the buffer, which is
// larger than any frame.
func (o *Output) payload(f wire.Frame) ([]byte, error) {
	b, err := o.r.Peek(int(f.Len))
	if err != nil {
		return nil, err
	}
	o.held = len(b)
	return b, nil
}

// release lets go of the last payload.
func (o *Output) release() error {
	_, err := o.r.Discard(o.held)
	o.held = 0
	return err
}

func decodeChunk(f wire.Frame, b []byte) (c Chunk, skip bool, err error) {
	c = Chunk{Stream: f.Stream, Offset: int64(f.Offset)}
	switch f.Type {
	case wire.FrameData:
		c.Kind, c.Data = ChunkData, b
	case wire.FrameGap:
		c.Kind, c.Lost = ChunkGap, int64(binary.BigEndian.Uint64(b))
		if c.Lost < 0 || c.Lost > 1<<62 {
			return c, false, errors.New("a gap is out of range")
		}
	case wire.FrameExit:
		c.Kind = ChunkExit
		c.Exit, err = wire.DecodeExit(b)
	case wire.FrameKeepalive:
		skip = true
	default:
		err = errors.New("an unexpected frame")
	}
	return c, skip, err
}

// Close ends the stream.
func (o *Output) Close() error { return o.body.Close() }
