package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/belljar-sh/belljar/sandbox"
)

// MaxJSONFrame bounds a frame of JSON: an exit or a watch event.
const MaxJSONFrame = 64 << 10

// streamBuffer lets small frames be read several at a time.
const streamBuffer = 32 << 10

// Event is one frame of a process's output, checked.
type Event struct {
	Type   FrameType
	Stream Stream        // of FrameData and FrameGap
	Offset int64         // of the first byte of Data, or of those lost
	Data   []byte        // of FrameData; valid until the next call
	Lost   int64         // of FrameGap
	Exit   *sandbox.Exit // of FrameExit
}

// OutputReader reads the frames of one process's output and checks that they
// are what an honest guest sends: bytes in order, none twice, none skipped
// without a gap, nothing after the exit. One goroutine uses it.
type OutputReader struct {
	r    *bufio.Reader
	next [2]int64
	buf  []byte
	done bool
}

// NewOutputReader reads frames from r that begin at the given offsets.
func NewOutputReader(r io.Reader, stdout, stderr int64) *OutputReader {
	return &OutputReader{r: bufio.NewReaderSize(r, streamBuffer), next: [2]int64{stdout, stderr}}
}

// Offsets returns how far the reader has come: where to begin again after an
// interruption.
func (o *OutputReader) Offsets() (stdout, stderr int64) { return o.next[0], o.next[1] }

// Next returns the next frame. After the exit it returns io.EOF; a stream that
// ends before it returns io.ErrUnexpectedEOF. Keepalives are returned too.
func (o *OutputReader) Next() (Event, error) {
	if o.done {
		return Event{}, io.EOF
	}
	f, err := ReadFrame(o.r)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Event{}, err
	}
	e := Event{Type: f.Type, Stream: f.Stream, Offset: int64(f.Offset)}
	payload, err := o.payload(f)
	if err != nil {
		return e, err
	}
	return o.check(e, payload)
}

func (o *OutputReader) payload(f Frame) ([]byte, error) {
	if f.Type != FrameData && f.Len > MaxJSONFrame {
		return nil, fmt.Errorf("wire: frame of type %d and %d bytes", f.Type, f.Len)
	}
	if cap(o.buf) < int(f.Len) {
		o.buf = make([]byte, f.Len)
	}
	b := o.buf[:f.Len]
	if _, err := io.ReadFull(o.r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

func (o *OutputReader) check(e Event, payload []byte) (Event, error) {
	switch e.Type {
	case FrameData:
		e.Data = payload
		return e, o.advance(e, int64(len(payload)))
	case FrameGap:
		lost := binary.BigEndian.Uint64(payload)
		if lost == 0 || lost > 1<<62 {
			return e, fmt.Errorf("wire: gap of %d bytes", lost)
		}
		e.Lost = int64(lost)
		return e, o.advance(e, e.Lost)
	case FrameExit:
		x, err := DecodeExit(payload)
		if err != nil {
			return e, err
		}
		e.Exit = &x
		o.done = true
		return e, nil
	case FrameKeepalive:
		if len(payload) != 0 {
			return e, fmt.Errorf("wire: keepalive of %d bytes", len(payload))
		}
		return e, nil
	}
	return e, fmt.Errorf("wire: frame of type %d in output", e.Type)
}

// advance moves the stream of e on by n bytes.
func (o *OutputReader) advance(e Event, n int64) error {
	next := &o.next[e.Stream-1]
	switch {
	case n == 0:
		return fmt.Errorf("wire: empty frame")
	case e.Offset != *next:
		return fmt.Errorf("wire: bytes from %d on where %d was next", e.Offset, *next)
	case e.Offset+n > 1<<62 || e.Offset+n < 0:
		return fmt.Errorf("wire: offset out of range")
	}
	*next += n
	return nil
}

// WatchReader reads the events of a watch and checks them. One goroutine uses
// it.
type WatchReader struct{ r *bufio.Reader }

// NewWatchReader reads events from r.
func NewWatchReader(r io.Reader) *WatchReader {
	return &WatchReader{bufio.NewReaderSize(r, streamBuffer)}
}

// Next returns the next event, passing over keepalives; io.EOF when the stream
// has ended between two frames.
func (w *WatchReader) Next() (WatchEvent, error) {
	for {
		f, err := ReadFrame(w.r)
		if err != nil {
			return WatchEvent{}, err
		}
		if f.Type == FrameKeepalive && f.Len == 0 {
			continue
		}
		if f.Type != FrameJSON || f.Len > MaxJSONFrame {
			return WatchEvent{}, fmt.Errorf("wire: frame of type %d and %d bytes in a watch", f.Type, f.Len)
		}
		return w.event(f.Len)
	}
}

func (w *WatchReader) event(n uint32) (WatchEvent, error) {
	var e WatchEvent
	b := make([]byte, n)
	if _, err := io.ReadFull(w.r, b); err != nil {
		return e, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("wire: watch event: %w", err)
	}
	if e.Dropped < 0 {
		return e, fmt.Errorf("wire: %d events dropped", e.Dropped)
	}
	return e, nil
}
