package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair returns two ends of a unix socket.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	a, b = ends[0], ends[1]
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// rig is a relay between a writer and a reader.
type rig struct {
	writer, src, dst, reader *net.UnixConn
}

func newRig(t *testing.T) rig {
	w, s := pair(t)
	d, r := pair(t)
	return rig{w, s, d, r}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func descriptors(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func TestSend(t *testing.T) {
	for name, c := range map[string]struct {
		sent, ahead int // bytes on the wire, of which so many have been read
		length      int64
		want        int
		err         error
	}{
		"known length":            {5 << 20, 0, 5 << 20, 5 << 20, nil},
		"some ahead":              {5 << 20, 777, 5 << 20, 5 << 20, nil},
		"all ahead":               {777, 777, 777, 777, nil},
		"more than it said":       {5<<20 + 99, 0, 5 << 20, 5 << 20, nil},
		"more ahead than it said": {900, 900, 777, 777, nil},
		"to the end":              {3<<20 + 1, 10, -1, 3<<20 + 1, nil},
		"nothing":                 {0, 0, 0, 0, nil},
		"short":                   {1 << 20, 0, 2 << 20, 1 << 20, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			before := descriptors(t)
			data := random(c.sent)
			go func() {
				g.writer.Write(data[c.ahead:])
				g.writer.CloseWrite()
			}()
			done := make(chan error, 1)
			go func() {
				s := Source{Conn: g.src, Ahead: data[:c.ahead], Length: c.length}
				done <- s.Send(t.Context(), g.dst, []byte("head"))
				g.dst.CloseWrite()
			}()
			got, err := io.ReadAll(g.reader)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if !bytes.Equal(got, append([]byte("head"), data[:c.want]...)) {
				t.Fatalf("%d bytes came, not the right ones", len(got))
			}
			if now := descriptors(t); now != before {
				t.Errorf("%d descriptors, %d before", now, before)
			}
		})
	}
}

// TestNobodyWaitsForEver: each way to end a relay that has nothing to move.
func TestNobodyWaitsForEver(t *testing.T) {
	for _, kind := range []string{"bytes", "frames"} {
		for name, end := range map[string]func(g rig, cancel func()){
			"the reader goes":         func(g rig, _ func()) { g.reader.Close() },
			"the context ends":        func(_ rig, cancel func()) { cancel() },
			"the writer goes":         func(g rig, _ func()) { g.writer.Close() },
			"bytes come, and it ends": func(g rig, cancel func()) { g.writer.Write(make([]byte, 100)); cancel() },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				g := newRig(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				s := Source{Conn: g.src, Length: 1 << 30}
				go func() {
					if kind == "bytes" {
						done <- s.Send(ctx, g.dst, []byte("h"))
					} else {
						done <- s.SendFrames(ctx, g.dst, []byte("h"), &cutter{})
					}
				}()
				if _, err := io.ReadFull(g.reader, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				end(g, cancel)
				if err := <-done; err == nil {
					t.Fatal("no error")
				}
			})
		}
	}
}

// cutter knows frames of 5 bytes and a payload: a type, of which 'e' ends the
// stream, and a length.
type cutter struct {
	head  []byte
	left  int64
	ended bool
	looks int64 // bytes that were shown
	moved int64
}

func (c *cutter) Feed(p []byte) error {
	c.looks += int64(len(p))
	for len(p) > 0 {
		if c.left > 0 {
			n := min(c.left, int64(len(p)))
			c.left -= n
			p = p[n:]
			continue
		}
		if c.ended {
			return errors.New("bytes after the end")
		}
		n := min(len(p), 5-len(c.head))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
		if len(c.head) == 5 {
			c.left = int64(binary.BigEndian.Uint32(c.head[1:]))
			c.ended = c.head[0] == 'e'
			if c.head[0] == 'x' {
				return errBad
			}
			c.head = c.head[:0]
		}
	}
	return nil
}

var errBad = errors.New("a bad frame")

func (c *cutter) Bulk() int64 { return c.left }
func (c *cutter) Skip() error {
	c.moved += c.left
	c.left = 0
	return nil
}
func (c *cutter) Ended() bool { return c.ended && c.left == 0 }

func frame(kind byte, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	return append(b, payload...)
}

func TestSendFrames(t *testing.T) {
	small, large := frame('d', random(100)), frame('d', random(300<<10))
	end := frame('e', nil)
	join := func(f ...[]byte) []byte { return bytes.Join(f, nil) }
	for name, c := range map[string]struct {
		stream []byte
		moves  bool
		err    error
	}{
		"only the end": {stream: end},
		"small":        {stream: join(small, small, end)},
		"large":        {stream: join(large, large, large, end), moves: true},
		"mixed":        {stream: join(small, large, small, small, large, end), moves: true},
		"cut off":      {stream: join(small, large, small), moves: true, err: io.ErrUnexpectedEOF},
		"bad":          {stream: join(small, frame('x', nil)), err: errBad},
		"bad at once":  {stream: frame('x', nil), err: errBad},
	} {
		for _, ahead := range []int{0, 3, 50} {
			t.Run(name, func(t *testing.T) {
				ahead := min(ahead, len(c.stream))
				g := newRig(t)
				before := descriptors(t)
				go func() {
					g.writer.Write(c.stream[ahead:])
					g.writer.CloseWrite()
				}()
				cut := &cutter{}
				done := make(chan error, 1)
				go func() {
					s := Source{Conn: g.src, Ahead: c.stream[:ahead], Length: -1}
					done <- s.SendFrames(t.Context(), g.dst, nil, cut)
					g.dst.CloseWrite()
				}()
				got, err := io.ReadAll(g.reader)
				if err != nil {
					t.Fatal(err)
				}
				if err := <-done; !errors.Is(err, c.err) {
					t.Fatalf("error %v, want %v", err, c.err)
				}
				if c.err == nil && !bytes.Equal(got, c.stream) || !bytes.HasPrefix(c.stream, got) {
					t.Errorf("%d bytes came of %d, not the right ones", len(got), len(c.stream))
				}
				if moved := cut.moved > 0; moved != c.moves {
					t.Errorf("%d bytes were moved", cut.moved)
				}
				if now := descriptors(t); now != before {
					t.Errorf("%d descriptors, %d before", now, before)
				}
			})
		}
	}
}
