package channel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/belljar-sh/belljar/internal/channel"
)

const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frames writes with an honest framer.
func frames(f func(*http2.Framer)) []byte {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	f(fr)
	return b.Bytes()
}

// raw is one frame, whatever its sense.
func raw(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

func times(n int, b []byte) []byte { return bytes.Repeat(b, n) }

func settings() []byte { return frames(func(f *http2.Framer) { f.WriteSettings() }) }

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// hostile is what no honest guest sends, by the rule that it breaks.
var hostile = []struct {
	name  string
	rule  string
	bytes []byte // after SETTINGS
}{
	{"data without stream", "data", raw(0, 0, 0, []byte("x"))},
	{"padded data", "padding", raw(0, 0x8, 1, []byte{1, 0, 0})},
	{"huge data frame", "frame-size", raw(0, 0, 1, make([]byte, channel.FrameBytes+1))},
	{"empty data flood", "empty-flood", times(1200, raw(0, 0, 1, nil))},
	{"headers on no stream", "headers", raw(1, 4, 0, nil)},
	{"headers on even stream", "headers", raw(1, 4, 2, nil)},
	{"padded headers", "padding", raw(1, 0xc, 1, []byte{0})},
	{"headers flood", "headers-flood", times(5000, raw(1, 4, 1, []byte{0x88}))},
	{"endless header block", "header-size", joined(raw(1, 0, 1, make([]byte, 16<<10)), times(5, raw(9, 0, 1, make([]byte, 16<<10))))},
	{"continuation flood", "continuation-flood", joined(raw(1, 0, 1, []byte{0x88}), times(2000, raw(9, 0, 1, nil)))},
	{"continuation of nothing", "header-block", raw(9, 4, 1, nil)},
	{"frame inside a block", "header-block", joined(raw(1, 0, 1, []byte{0x88}), raw(6, 0, 0, make([]byte, 8)))},
	{"priority", "frame-type", raw(2, 0, 1, make([]byte, 5))},
	{"push", "frame-type", raw(5, 4, 1, make([]byte, 4))},
	{"unknown type", "frame-type", raw(0xfe, 0, 1, make([]byte, 100))},
	{"short reset", "reset", raw(3, 0, 1, []byte{1})},
	{"reset flood", "reset-flood", times(5000, raw(3, 0, 1, make([]byte, 4)))},
	{"long ping", "ping", raw(6, 0, 0, make([]byte, 9))},
	{"ping flood", "ping-flood", times(300, raw(6, 0, 0, make([]byte, 8)))},
	{"ping answer flood", "ping-flood", times(300, raw(6, 1, 0, make([]byte, 8)))},
	{"settings flood", "settings-flood", times(20, settings())},
	{"settings on a stream", "settings", raw(4, 0, 1, make([]byte, 6))},
	{"settings of odd size", "settings", raw(4, 0, 0, make([]byte, 7))},
	{"many settings", "settings", raw(4, 0, 0, make([]byte, 6*33))},
	{"goaway with a novel", "goaway", raw(7, 0, 0, make([]byte, 8+1025))},
	{"goaway flood", "goaway-flood", times(5, raw(7, 0, 0, make([]byte, 8)))},
	{"short window update", "window", raw(8, 0, 0, []byte{1})},
}

func TestInspectorFaults(t *testing.T) {
	for _, role := range []channel.Role{channel.GuestServes, channel.GuestAsks} {
		begin := settings()
		if role == channel.GuestAsks {
			begin = append([]byte(clientPreface), begin...)
		}
		for _, tc := range hostile {
			t.Run(tc.name, func(t *testing.T) {
				for _, piece := range []int{1, 7, 1 << 20} {
					i := channel.NewInspector(role, channel.Limits{})
					err := feed(i, joined(begin, tc.bytes), piece)
					var f *channel.Fault
					if !errors.As(err, &f) || f.Rule != tc.rule {
						t.Errorf("role %d, pieces of %d: %v, want rule %s", role, piece, err, tc.rule)
					}
				}
			})
		}
	}
}

func TestInspectorFirstBytes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		role  channel.Role
		bytes []byte
		rule  string
	}{
		{"HTTP/1 to the host", channel.GuestAsks, []byte("GET / HTTP/1.1\r\n"), "preface"},
		{"no preface", channel.GuestAsks, settings(), "preface"},
		{"HTTP/1 from the guest", channel.GuestServes, []byte("HTTP/1.1 200 OK\r\n"), "first-frame"},
		{"headers first", channel.GuestServes, raw(1, 4, 1, nil), "first-frame"},
		{"acknowledgement first", channel.GuestServes, raw(4, 1, 0, nil), "first-frame"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var f *channel.Fault
			if err := feed(channel.NewInspector(tc.role, channel.Limits{}), tc.bytes, 3); !errors.As(err, &f) || f.Rule != tc.rule {
				t.Errorf("%v, want rule %s", err, tc.rule)
			}
		})
	}
}

func feed(i *channel.Inspector, b []byte, piece int) error {
	now := time.Unix(1000, 0)
	for len(b) > 0 {
		n := min(piece, len(b))
		if err := i.Feed(now, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// TestInspectorIsPatient sends much over a long time, as a busy honest guest
// does.
func TestInspectorIsPatient(t *testing.T) {
	i := channel.NewInspector(channel.GuestServes, channel.Limits{})
	now := time.Unix(1000, 0)
	if err := i.Feed(now, settings()); err != nil {
		t.Fatal(err)
	}
	answer := joined(raw(1, 4, 1, []byte{0x88}), raw(0, 0, 1, make([]byte, 100)), raw(0, 1, 1, nil), raw(8, 0, 0, make([]byte, 4)))
	for n := range int64(100_000) {
		i.Grant(n + 1)
		now = now.Add(100 * time.Microsecond)
		if err := i.Feed(now, answer); err != nil {
			t.Fatalf("answer %d: %v", n, err)
		}
	}
	if i.Delay() > 0 {
		t.Errorf("an honest guest is delayed by %v", i.Delay())
	}
}

func TestInspectorDelaysSmallFrames(t *testing.T) {
	i := channel.NewInspector(channel.GuestServes, channel.Limits{FramesPerSec: 1000})
	now := time.Unix(1000, 0)
	if err := i.Feed(now, joined(settings(), times(3000, raw(0, 0, 1, []byte("x"))))); err != nil {
		t.Fatal(err)
	}
	if d := i.Delay(); d < 1900*time.Millisecond || d > 2100*time.Millisecond {
		t.Errorf("delay %v after 3000 frames at 1000 a second, want 2s", d)
	}
}

func TestInspectorPartial(t *testing.T) {
	i := channel.NewInspector(channel.GuestServes, channel.Limits{})
	for n, b := range joined(settings(), raw(1, 0, 1, []byte{0x88})) {
		if n > 0 && n != 9 && !i.Partial() {
			t.Errorf("byte %d: not partial", n)
		}
		if n == 9 && i.Partial() {
			t.Error("partial between two frames")
		}
		if err := i.Feed(time.Unix(0, 0), []byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if !i.Partial() {
		t.Error("an open header block is not partial")
	}
}

// FuzzInspector feeds the same bytes in different pieces: it must neither
// panic nor judge differently.
func FuzzInspector(f *testing.F) {
	for _, tc := range hostile {
		f.Add(tc.bytes[:min(len(tc.bytes), 4096)], false, uint8(3))
	}
	f.Add([]byte(clientPreface), true, uint8(1))
	f.Add(joined([]byte(clientPreface), settings()), true, uint8(5))
	f.Fuzz(func(t *testing.T, b []byte, asks bool, piece uint8) {
		role := channel.GuestServes
		if asks {
			role = channel.GuestAsks
		}
		one, two := channel.NewInspector(role, channel.Limits{}), channel.NewInspector(role, channel.Limits{})
		e1, e2 := feed(one, b, len(b)+1), feed(two, b, int(piece)+1)
		if (e1 == nil) != (e2 == nil) || e1 != nil && e1.Error() != e2.Error() {
			t.Fatalf("in one piece %v, in pieces of %d %v", e1, int(piece)+1, e2)
		}
		if e1 == nil && (one.Partial() != two.Partial() || one.Begun() != two.Begun()) {
			t.Fatal("two inspectors disagree")
		}
	})
}
