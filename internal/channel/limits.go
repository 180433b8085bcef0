package channel

import (
	"fmt"
	"sync/atomic"
	"time"
)

// FrameBytes is the largest DATA frame that either end sends.
const FrameBytes = 512 << 10

// Limits bounds what one guest may cost the host on one channel. Zero fields
// take the value of [DefaultLimits].
type Limits struct {
	Streams       int           // open at the same time
	BufferedBytes int           // received and not yet read, over all streams
	StreamBytes   int           // received and not yet read, per stream
	HeaderBytes   int           // of one header block, before and after decompression
	FrameTime     time.Duration // from the first byte of a frame to its last
	WriteTime     time.Duration // for the guest to take any byte at all of what is sent to it
	ReadTime      time.Duration // an answer may go unread for so long while room is scarce
	FramesPerSec  int           // beyond it reading slows down; on up a tenth of it

	// Traffic, when set, counts the bytes of the channel.
	Traffic *Traffic
}

// DefaultLimits returns the budget of one sandbox: 256 streams, 16 MiB.
func DefaultLimits() Limits {
	return Limits{
		Streams:       256,
		BufferedBytes: 16 << 20,
		StreamBytes:   1 << 20,
		HeaderBytes:   64 << 10,
		FrameTime:     30 * time.Second,
		WriteTime:     time.Minute,
		ReadTime:      5 * time.Second,
		FramesPerSec:  50_000,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	pick := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	pick(&l.Streams, d.Streams)
	pick(&l.BufferedBytes, d.BufferedBytes)
	pick(&l.StreamBytes, d.StreamBytes)
	pick(&l.HeaderBytes, d.HeaderBytes)
	pick(&l.FramesPerSec, d.FramesPerSec)
	if l.FrameTime <= 0 {
		l.FrameTime = d.FrameTime
	}
	if l.WriteTime <= 0 {
		l.WriteTime = d.WriteTime
	}
	if l.ReadTime <= 0 {
		l.ReadTime = d.ReadTime
	}
	return l
}

// Traffic counts bytes as the host sees them. It is safe for concurrent use.
type Traffic struct {
	Read    atomic.Int64 // from the guest
	Written atomic.Int64 // to the guest
}

// Fault is why the host ended a channel: something that no honest guest sends.
type Fault struct {
	Rule   string // stable name of the rule that was broken
	Detail string // for logs; holds numbers only, nothing that a guest chose
}

// Error returns rule and detail.
func (f *Fault) Error() string { return "channel fault: " + f.Rule + ": " + f.Detail }

func faultf(rule, format string, args ...any) *Fault {
	return &Fault{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}
