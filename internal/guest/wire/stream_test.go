package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

func frame(t wire.FrameType, s wire.Stream, off uint64, payload []byte) []byte {
	b := make([]byte, wire.HeaderLen+len(payload))
	wire.Frame{Type: t, Stream: s, Len: uint32(len(payload)), Offset: off}.Put(b)
	copy(b[wire.HeaderLen:], payload)
	return b
}

func gap(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func TestOutputReader(t *testing.T) {
	good := bytes.Join([][]byte{
		frame(wire.FrameGap, wire.Stdout, 3, gap(7)),
		frame(wire.FrameData, wire.Stdout, 10, []byte("hello")),
		frame(wire.FrameKeepalive, 0, 0, nil),
		frame(wire.FrameData, wire.Stderr, 0, []byte("e")),
		frame(wire.FrameExit, 0, 0, []byte(`{"code":3}`)),
	}, nil)
	o := wire.NewOutputReader(bytes.NewReader(good), 3, 0)
	var got []string
	for {
		e, err := o.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		s := string(rune('0'+e.Type)) + string(e.Data)
		if e.Exit != nil && e.Exit.Code != 3 {
			t.Errorf("got exit %+v", e.Exit)
		}
		got = append(got, s)
	}
	if strings.Join(got, " ") != "2 1hello 4 1e 3" {
		t.Errorf("got %q", got)
	}
	if a, b := o.Offsets(); a != 15 || b != 1 {
		t.Errorf("got offsets %d, %d", a, b)
	}
	for cut := range len(good) {
		o := wire.NewOutputReader(bytes.NewReader(good[:cut]), 3, 0)
		err := error(nil)
		for err == nil {
			_, err = o.Next()
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: got %v, want an unexpected end", cut, err)
		}
	}
}

func TestOutputReaderRefuses(t *testing.T) {
	long := make([]byte, wire.HeaderLen)
	wire.Frame{Type: wire.FrameData, Stream: wire.Stdout, Len: wire.MaxPayload + 1}.Put(long)
	exit := make([]byte, wire.HeaderLen)
	wire.Frame{Type: wire.FrameExit, Len: wire.MaxPayload}.Put(exit)
	reserved := frame(wire.FrameData, wire.Stdout, 0, []byte("x"))
	reserved[2] = 1
	tests := []struct {
		name string
		in   []byte
	}{
		{"skipped bytes", frame(wire.FrameData, wire.Stdout, 5, []byte("x"))},
		{"bytes again", bytes.Repeat(frame(wire.FrameData, wire.Stdout, 0, []byte("x")), 2)},
		{"empty data", frame(wire.FrameData, wire.Stdout, 0, nil)},
		{"no such stream", frame(wire.FrameData, 3, 0, []byte("x"))},
		{"too long", long},
		{"long exit", exit},
		{"reserved", reserved},
		{"no such type", frame(9, 0, 0, nil)},
		{"gap of nothing", frame(wire.FrameGap, wire.Stdout, 0, gap(0))},
		{"gap beyond the end", frame(wire.FrameGap, wire.Stdout, 0, gap(1<<63))},
		{"short gap", frame(wire.FrameGap, wire.Stdout, 0, []byte("x"))},
		{"gap elsewhere", frame(wire.FrameGap, wire.Stdout, 1, gap(1))},
		{"keepalive with text", frame(wire.FrameKeepalive, 0, 0, []byte("x"))},
		{"exit without JSON", frame(wire.FrameExit, 0, 0, []byte("x"))},
		{"event", frame(wire.FrameJSON, 0, 0, []byte("{}"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := wire.NewOutputReader(bytes.NewReader(tt.in), 0, 0)
			var err error
			for err == nil {
				_, err = o.Next()
			}
			if !strings.HasPrefix(err.Error(), "wire: ") {
				t.Errorf("got %v, want a breach of the protocol", err)
			}
		})
	}
}

func TestWatchReader(t *testing.T) {
	in := append(frame(wire.FrameKeepalive, 0, 0, nil), frame(wire.FrameJSON, 0, 0, []byte(`{"op":"write","path":"/a"}`))...)
	w := wire.NewWatchReader(bytes.NewReader(in))
	if e, err := w.Next(); err != nil || e.Op != "write" || e.Path != "/a" {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := w.Next(); err != io.EOF {
		t.Errorf("the end: got %v", err)
	}
	for _, bad := range [][]byte{
		frame(wire.FrameData, wire.Stdout, 0, []byte("x")), frame(wire.FrameJSON, 0, 0, []byte("x")),
		frame(wire.FrameJSON, 0, 0, []byte(`{"dropped":-1}`)), frame(wire.FrameJSON, 0, 0, []byte("{}"))[:17],
	} {
		if _, err := wire.NewWatchReader(bytes.NewReader(bad)).Next(); err == nil || err == io.EOF {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// FuzzOutputReader: whatever a guest sends, the reader ends, holds no more than
// a frame, and never goes back.
func FuzzOutputReader(f *testing.F) {
	f.Add(frame(wire.FrameData, wire.Stdout, 0, []byte("hello")))
	f.Add(append(frame(wire.FrameGap, wire.Stderr, 0, gap(5)), frame(wire.FrameExit, 0, 0, []byte(`{"code":1}`))...))
	f.Fuzz(func(t *testing.T, in []byte) {
		o := wire.NewOutputReader(bytes.NewReader(in), 0, 0)
		var total int
		for {
			a, b := o.Offsets()
			e, err := o.Next()
			if err != nil {
				return
			}
			total += len(e.Data)
			if c, d := o.Offsets(); c < a || d < b || c > 1<<62 || d > 1<<62 || len(e.Data) > wire.MaxPayload || total > len(in) {
				t.Fatalf("from %d, %d to %d, %d with %d bytes", a, b, c, d, len(e.Data))
			}
		}
	})
}

// FuzzReadFrame: a head that is accepted is one that Put would write.
func FuzzReadFrame(f *testing.F) {
	f.Add(frame(wire.FrameExit, 0, 0, nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := wire.ReadFrame(bytes.NewReader(in))
		if err != nil {
			return
		}
		var b [wire.HeaderLen]byte
		h.Put(b[:])
		if !bytes.Equal(b[:], in[:wire.HeaderLen]) {
			t.Fatalf("got %x, want %x", b, in[:wire.HeaderLen])
		}
	})
}
