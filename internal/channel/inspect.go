package channel

import (
	"encoding/binary"
	"time"
)

// Role tells which end of HTTP/2 the inspected peer plays.
type Role uint8

// The guest serves on down and is a client on up.
const (
	GuestServes Role = iota
	GuestAsks
)

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headLen = 9

	maxSettings      = 32 // in one frame
	maxContinuations = 8  // in one header block
	maxGoAwayDebug   = 1024
)

// The types of frame that an honest peer sends, and their flags (RFC 9113).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindow       = 0x8
	frameContinuation = 0x9

	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
)

// Inspector follows the frames of one connection by their heads and says when
// a peer does what no honest one does. It holds no payload, allocates nothing
// per frame and takes its clock from the caller. It is not safe for concurrent
// use.
type Inspector struct {
	role   Role
	limits Limits

	preface int // bytes of the preface still expected
	head    [headLen]byte
	got     int // bytes of head so far
	skip    int // bytes of payload still to come
	first   bool

	block   uint32 // stream of an open header block, 0 when none
	blockN  int    // frames of the block so far
	blockSz int    // bytes of the block so far

	now      time.Time
	headers  bucket
	resets   bucket
	pings    bucket
	settings bucket
	empties  bucket
	goaways  bucket
	frames   bucket
	credits  int64
	begun    int64 // frames
}

// NewInspector returns an inspector for a peer in the given role.
func NewInspector(role Role, l Limits) *Inspector {
	l = l.withDefaults()
	i := &Inspector{
		role: role, limits: l, first: true,
		pings:    newBucket(200, 20),
		settings: newBucket(16, 0.2),
		empties:  newBucket(1000, 100),
		goaways:  newBucket(4, 0),
		frames:   newBucket(float64(l.FramesPerSec), float64(l.FramesPerSec)),
	}
	if role == GuestServes {
		i.headers, i.resets = newBucket(1024, 100), newBucket(1024, 100)
	} else {
		// Every stream costs the host a handler and an answer, every frame two
		// switches between goroutines of HTTP/2's server. A flood of them must
		// not be felt by a neighbour before it ends; an honest guest asks for a
		// connection when a program opens one.
		i.preface = len(preface)
		i.headers, i.resets = newBucket(512, 200), newBucket(512, 200)
		i.frames = newBucket(1000, float64(l.FramesPerSec)/10)
	}
	return i
}

// Grant tells that the host has begun so many requests in all: each may be
// answered by some headers, a reset and an acknowledged ping.
func (i *Inspector) Grant(total int64) {
	n := float64(total - i.credits)
	i.credits = total
	i.headers.add(4 * n)
	i.resets.add(2 * n)
	i.pings.add(2 * n)
}

// Partial reports whether a frame or a header block has begun and not ended.
func (i *Inspector) Partial() bool {
	return i.got > 0 || i.skip > 0 || i.block != 0 || i.preface > 0 && i.preface < len(preface)
}

// Begun counts the frames that have begun.
func (i *Inspector) Begun() int64 { return i.begun }

// Delay returns how long to wait before reading on, so that many small frames
// cost the host a bounded share of its time.
func (i *Inspector) Delay() time.Duration { return i.frames.debt() }

// Feed inspects the next bytes, which arrived at now. The error is a [*Fault].
func (i *Inspector) Feed(now time.Time, p []byte) error {
	i.now = now
	for len(p) > 0 {
		switch {
		case i.preface > 0:
			n := min(i.preface, len(p))
			at := len(preface) - i.preface
			if string(p[:n]) != preface[at:at+n] {
				return faultf("preface", "the connection does not begin with HTTP/2")
			}
			i.preface -= n
			p = p[n:]
		case i.skip > 0:
			n := min(i.skip, len(p))
			i.skip -= n
			p = p[n:]
		default:
			n := copy(i.head[i.got:], p)
			i.got += n
			p = p[n:]
			if i.got < headLen {
				return nil
			}
			i.got = 0
			if err := i.frame(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (i *Inspector) frame() error {
	size := int(i.head[0])<<16 | int(i.head[1])<<8 | int(i.head[2])
	kind, flags := i.head[3], i.head[4]
	stream := binary.BigEndian.Uint32(i.head[5:]) & (1<<31 - 1)
	i.skip = size
	i.begun++
	i.frames.force(i.now, 1)

	if i.first && (kind != frameSettings || flags&flagAck != 0) {
		return faultf("first-frame", "type %d comes before SETTINGS", kind)
	}
	i.first = false
	if i.block != 0 && (kind != frameContinuation || stream != i.block) {
		return faultf("header-block", "type %d inside a header block", kind)
	}
	switch kind {
	case frameData:
		return i.data(size, flags, stream)
	case frameHeaders, frameContinuation:
		return i.header(kind, size, flags, stream)
	case frameReset:
		return i.plain("reset", &i.resets, size == 4 && stream != 0)
	case framePing:
		return i.plain("ping", &i.pings, size == 8 && stream == 0)
	case frameSettings:
		ok := stream == 0 && size%6 == 0 && size <= 6*maxSettings && (flags&flagAck == 0 || size == 0)
		return i.plain("settings", &i.settings, ok)
	case frameGoAway:
		return i.plain("goaway", &i.goaways, stream == 0 && size >= 8 && size <= 8+maxGoAwayDebug)
	case frameWindow:
		if size != 4 {
			return faultf("window", "frame of %d bytes", size)
		}
		return nil
	}
	return faultf("frame-type", "type %d", kind)
}

func (i *Inspector) plain(rule string, b *bucket, wellFormed bool) error {
	if !wellFormed {
		return faultf(rule, "malformed frame")
	}
	if !b.take(i.now, 1) {
		return faultf(rule+"-flood", "more than an honest guest sends")
	}
	return nil
}

func (i *Inspector) data(size int, flags byte, stream uint32) error {
	switch {
	case stream == 0:
		return faultf("data", "data without a stream")
	case flags&flagPadded != 0:
		return faultf("padding", "padded data")
	case size > FrameBytes:
		return faultf("frame-size", "data frame of %d bytes", size)
	case size == 0 && flags&flagEndStream == 0 && !i.empties.take(i.now, 1):
		return faultf("empty-flood", "empty data frames")
	}
	return nil
}

func (i *Inspector) header(kind byte, size int, flags byte, stream uint32) error {
	if kind == frameHeaders {
		if stream == 0 || stream%2 == 0 {
			return faultf("headers", "headers on stream %d", stream)
		}
		if flags&flagPadded != 0 {
			return faultf("padding", "padded headers")
		}
		if !i.headers.take(i.now, 1) {
			return faultf("headers-flood", "more than an honest guest sends")
		}
		i.block, i.blockN, i.blockSz = stream, 0, 0
	} else if i.block == 0 {
		return faultf("header-block", "continuation of nothing")
	}
	i.blockN++
	i.blockSz += size
	if i.blockN > 1+maxContinuations {
		return faultf("continuation-flood", "header block of more than %d frames", i.blockN-1)
	}
	if i.blockSz > i.limits.HeaderBytes {
		return faultf("header-size", "header block of more than %d bytes", i.limits.HeaderBytes)
	}
	if flags&flagEndHeaders != 0 {
		i.block = 0
	}
	return nil
}

// bucket is a token bucket whose clock is the caller's.
type bucket struct {
	tokens, burst, perSec float64
	at                    time.Time
}

func newBucket(burst, perSec float64) bucket {
	return bucket{tokens: burst, burst: burst, perSec: perSec}
}

func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.at); !b.at.IsZero() && d > 0 && b.tokens < b.burst {
		b.tokens = min(b.burst, b.tokens+d.Seconds()*b.perSec)
	}
	if now.After(b.at) {
		b.at = now
	}
}

// add grants tokens; they may exceed the burst, but not by more than a second
// burst, so that a long idle life earns no flood.
func (b *bucket) add(n float64) { b.tokens = min(b.tokens+n, max(b.tokens, 2*b.burst)) }

func (b *bucket) take(now time.Time, n float64) bool {
	b.refill(now)
	if b.tokens < n {
		return false
	}
	b.tokens -= n
	return true
}

// force takes tokens that need not be there; debt tells the time to earn them.
func (b *bucket) force(now time.Time, n float64) {
	b.refill(now)
	b.tokens -= n
}

func (b *bucket) debt() time.Duration {
	if b.tokens >= 0 || b.perSec <= 0 {
		return 0
	}
	return time.Duration(-b.tokens / b.perSec * float64(time.Second))
}
