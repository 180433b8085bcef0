package main

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/net/http2"
)

// attacks by name, as bench/attack lists them. A loop ends when the keeper has
// closed the channel.
var attacks = map[string]func(h *hostile){
	"garbage": func(h *hostile) { io.Copy(h.down.file, endless("garbage")) },
	"half a frame": func(h *hostile) {
		h.down.w.Write([]byte{0, 0, 8, byte(http2.FramePing), 0, 0, 0, 0, 0, 1, 2})
		h.down.w.Flush()
	},
	"pings":    func(h *hostile) { flood(func() error { return h.down.WritePing(false, [8]byte{}) }) },
	"resets":   func(h *hostile) { flood(func() error { return h.down.WriteRSTStream(h.stream, http2.ErrCodeCancel) }) },
	"settings": func(h *hostile) { flood(func() error { return h.down.WriteSettings() }) },
	"headers": func(h *hostile) {
		block := encode(":status", "200")
		flood(func() error {
			return h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.stream, EndHeaders: true, BlockFragment: block})
		})
	},
	"endless headers": func(h *hostile) {
		h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.stream, BlockFragment: encode(":status", "200")})
		flood(func() error { return h.down.WriteContinuation(h.stream, false, encode("x", "y")) })
	},
	"empty data": func(h *hostile) { h.answer(); flood(func() error { return h.down.WriteData(h.stream, false, nil) }) },
	"bytes one by one": func(h *hostile) {
		h.answer()
		flood(func() error { return h.down.WriteData(h.stream, false, []byte{1}) })
	},
	"an answer without end": func(h *hostile) {
		h.answer()
		b := make([]byte, 16<<10)
		flood(func() error { return h.down.WriteData(h.stream, false, b) })
	},
	"window updates":     func(h *hostile) { flood(func() error { return h.down.WriteWindowUpdate(h.stream, 1) }) },
	"window updates (0)": func(h *hostile) { flood(func() error { return h.down.WriteWindowUpdate(0, 1) }) },
	"log":                func(h *hostile) { io.Copy(os.Stdout, endless("x")) },
	"up: no HTTP/2":      func(h *hostile) { io.Copy(h.up.file, endless("GET / HTTP/1.1\r\n\r\n")) },
	"up: streams, read": func(h *hostile) {
		h.beginUp()
		go io.Copy(io.Discard, h.up.file)
		h.streams(1<<31 - 1)
	},
	"up: 10,000 streams, unread": func(h *hostile) { h.beginUp(); h.streams(10_000) },
	"up: rapid reset": func(h *hostile) {
		h.beginUp()
		go io.Copy(io.Discard, h.up.file)
		n := uint32(1)
		flood(func() error {
			err := h.open(n)
			if err == nil {
				err = h.up.WriteRSTStream(n, http2.ErrCodeCancel)
			}
			n += 2
			return err
		})
	},
	"up: pings": func(h *hostile) {
		h.beginUp()
		go io.Copy(io.Discard, h.up.file)
		flood(func() error { return h.up.WritePing(false, [8]byte{}) })
	},
	"up: window updates": func(h *hostile) {
		h.beginUp()
		go io.Copy(io.Discard, h.up.file)
		flood(func() error { return h.up.WriteWindowUpdate(0, 1) })
	},
}

func flood(write func() error) {
	for write() == nil {
	}
}

// answer begins an answer whose body goes on.
func (h *hostile) answer() {
	h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.stream, EndHeaders: true, BlockFragment: encode(":status", "200")})
}

func (h *hostile) beginUp() {
	io.WriteString(h.up.w, http2.ClientPreface)
	h.up.WriteSettings()
}

func (h *hostile) open(stream uint32) error {
	return h.up.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, EndHeaders: true, BlockFragment: encode(":method", "CONNECT", ":authority", "example.com:443"),
	})
}

// streams opens n streams.
func (h *hostile) streams(n int) {
	for i := range n {
		if h.open(uint32(2*i+1)) != nil {
			return
		}
	}
	h.up.w.Flush()
}

// endless repeats a text in large pieces.
func endless(text string) io.Reader {
	return repeat{bytes.Repeat([]byte(text), burst/len(text))}
}

type repeat struct{ b []byte }

func (r repeat) Read(p []byte) (int, error) { return copy(p, r.b), nil }
