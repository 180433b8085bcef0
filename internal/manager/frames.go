package manager

import (
	"bytes"
	"encoding/binary"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxExit bounds the exit frame of a guest.
const maxExit = 16 << 10

// maxGaps bounds the gaps in a row on one stream without a byte between them.
// An honest guest follows a gap with data; a second one can come when another
// reader's acks move the beginning on before there was room for data.
const maxGaps = 4

// scanner follows a stream of output frames without keeping it. Payloads of
// data are skipped, so it costs next to nothing.
type scanner struct {
	gap  func(stream guest.Stream, lost int64)
	exit func(sandbox.Exit)
	// first, when set, takes the payload of a JSON frame before all others.
	first func([]byte) error

	head  [guest.HeaderLen]byte
	n     int    // bytes of head that are there
	left  uint32 // bytes of the payload that are to come
	frame guest.Frame
	small []byte // payload of a gap or exit
	gaps  [3]int // by stream: gaps since the last data
	ended bool
}

// feed follows p. An error means that these bytes are not what an honest guest
// sends.
func (s *scanner) feed(p []byte) error {
	for len(p) > 0 {
		if s.left > 0 {
			n := min(len(p), int(s.left))
			if s.frame.Type != guest.FrameData {
				s.small = append(s.small, p[:n]...)
			}
			s.left -= uint32(n)
			p = p[n:]
			if s.left == 0 {
				if err := s.complete(); err != nil {
					return err
				}
			}
			continue
		}
		if s.ended {
			return badGuest("output after a process's exit")
		}
		n := copy(s.head[s.n:], p)
		s.n += n
		p = p[n:]
		if s.n < len(s.head) {
			return nil
		}
		if err := s.begin(); err != nil {
			return err
		}
	}
	return nil
}

// begin takes a complete head.
func (s *scanner) begin() (err error) {
	s.n = 0
	if s.frame, err = guest.ReadFrame(bytes.NewReader(s.head[:])); err != nil {
		return badGuest("a frame that cannot be: %v", err)
	}
	s.left, s.small = s.frame.Len, s.small[:0]
	if (s.frame.Type == guest.FrameJSON) != (s.first != nil) {
		return badGuest("a frame that does not belong there")
	}
	switch s.frame.Type {
	case guest.FrameExit, guest.FrameKeepalive:
		if s.left > maxExit {
			return badGuest("a frame of %d bytes that says little", s.left)
		}
	}
	if s.left == 0 {
		return s.complete()
	}
	return nil
}

// complete acts on a frame that has come to its end.
func (s *scanner) complete() error {
	switch s.frame.Type {
	case guest.FrameData:
		if s.frame.Len > 0 {
			s.gaps[s.frame.Stream] = 0
		}
	case guest.FrameGap:
		lost := binary.BigEndian.Uint64(s.small)
		if lost == 0 || lost > 1<<62-s.frame.Offset {
			return badGuest("a gap of %d bytes", lost)
		}
		if s.gaps[s.frame.Stream]++; s.gaps[s.frame.Stream] > maxGaps {
			return badGuest("%d gaps in a row", s.gaps[s.frame.Stream])
		}
		s.gap(s.frame.Stream, int64(lost))
	case guest.FrameJSON:
		first := s.first
		s.first = nil
		return first(s.small)
	case guest.FrameExit:
		x, err := guest.DecodeExit(s.small)
		if err != nil {
			return badGuest("an exit that cannot be: %v", err)
		}
		s.ended = true
		s.exit(x)
	}
	return nil
}
