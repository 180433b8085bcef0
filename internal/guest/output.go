package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// Sizes of the output buffer of one stream.
const (
	firstBuffer  = 16 << 10
	readerWindow = 8 << 20 // unacknowledged bytes at most while a reader holds the program back
	minFree      = 64 << 10
	bigPipe      = 1 << 20
)

// After a process with a terminal has ended, its output ends with the terminal.
// Where a descendant keeps that open, it ends when nothing has come for
// ttyQuiet, or after ttyLinger at the latest: what is still on its way through
// a terminal cannot be counted as in a pipe.
const (
	ttyQuiet  = 100 * time.Millisecond
	ttyLinger = time.Second
)

// outputs is what the streams of one process share: one lock, and the readers
// to wake.
type outputs struct {
	mu      sync.Mutex
	readers map[*reader]struct{}
	// heldUntil is when the program is let go on although nobody has come back
	// to read, or begun to.
	heldUntil time.Time
	exited    bool // the process has been reaped
	done      bool // the exit frame may be sent
	told      bool // the exit frame has been sent
	closed    bool // forgotten
}

// held tells whether bytes may not be dropped now. The caller holds mu.
func (o *outputs) held() (held bool, until time.Time) {
	if o.closed {
		return false, time.Time{}
	}
	if len(o.readers) > 0 {
		return true, time.Time{}
	}
	return time.Now().Before(o.heldUntil), o.heldUntil
}

func (o *outputs) wakeReaders() {
	for r := range o.readers {
		r.poke()
	}
}

// stream is one output stream: a ring that holds the bytes from start to end.
// Its pump is the only one to write into the part that is free.
type stream struct {
	o    *outputs
	kind wire.Stream
	f    *os.File
	raw  syscall.RawConn
	max  int
	tty  bool

	// Guarded by o.mu.
	ring    []byte
	start   int64 // oldest byte kept
	end     int64 // bytes written by the program so far
	acked   int64
	dropped int64
	target  int64 // end at which all that was written before the exit has been read; -1: not known
	drained bool  // target has been reached, or the end of the stream
	eof     bool
	linger  time.Time     // of a terminal: when its output ends at the latest
	quiet   time.Time     // and when it does if nothing comes until then
	space   chan struct{} // tells the pump to look again
	hits    *hitCounter
}

func newStream(o *outputs, kind wire.Stream, f *os.File, max int64, hits *hitCounter) (*stream, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{o: o, kind: kind, f: f, raw: raw, max: int(max), target: -1, space: make(chan struct{}, 1), hits: hits}, nil
}

// pump reads until the stream ends and calls settled whenever drained becomes
// true.
func (s *stream) pump(settled func()) {
	defer s.f.Close()
	big := false
	for {
		if s.aim() {
			settled()
		}
		buf, ok := s.room()
		if !ok {
			continue
		}
		n, err := s.read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if s.silent() {
				settled()
			}
			continue
		}
		if s.commit(n, err != nil) || err != nil {
			settled()
		}
		if err != nil {
			return
		}
		if n >= 32<<10 && !big {
			big = true
			s.raw.Control(func(fd uintptr) { // a PTY refuses, and keeps its own size
				unix.FcntlInt(fd, unix.F_SETPIPE_SZ, bigPipe)
			})
		}
	}
}

// read reads once; a PTY whose program has gone answers EIO.
func (s *stream) read(buf []byte) (n int, err error) {
	rerr := s.raw.Read(func(fd uintptr) bool {
		// Interrupted is not "nothing there": waiting for the next edge of
		// readiness would be for ever.
		for {
			if n, err = unix.Read(int(fd), buf); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, io.EOF
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// aim sets the target once the process has exited: what stands in the pipe
// then is the last that it can have written itself. It reports whether the
// stream has just become drained.
func (s *stream) aim() bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if !s.o.exited || s.drained {
		return false
	}
	if s.tty {
		if s.linger.IsZero() {
			s.linger = time.Now().Add(ttyLinger)
		}
		s.drained = time.Now().After(s.linger)
		s.quiet = time.Now().Add(ttyQuiet)
		s.f.SetReadDeadline(s.quiet)
		return s.drained
	}
	if s.target < 0 {
		s.target = s.end + int64(s.unread())
		s.drained = s.end >= s.target
	}
	return s.drained
}

// silent takes note that a read has waited in vain and reports whether the
// stream has become drained by that.
func (s *stream) silent() bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	s.f.SetReadDeadline(time.Time{})
	// Another deadline is interrupt's, and means nothing but "look again".
	if !s.tty || s.linger.IsZero() || s.drained || time.Now().Before(s.quiet) {
		return false
	}
	s.drained = true
	return true
}

func (s *stream) unread() (n int) {
	s.raw.Control(func(fd uintptr) {
		if v, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = v
		}
	})
	return n
}

// room returns where the next bytes go. Without room and with a reader it
// waits and returns false.
func (s *stream) room() ([]byte, bool) {
	s.o.mu.Lock()
	for {
		if free := s.free(); free != nil {
			s.o.mu.Unlock()
			return free, true
		}
		held, until := s.o.held()
		if !held {
			s.drop(s.end - s.start - int64(len(s.ring)-s.least()))
			continue
		}
		s.o.mu.Unlock()
		s.wait(until)
		return nil, false
	}
}

func (s *stream) wait(until time.Time) {
	if until.IsZero() {
		<-s.space
		return
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-s.space:
	case <-t.C:
	}
}

// least is how much must be free before it is worth reading.
func (s *stream) least() int { return max(1, min(minFree, len(s.ring)/4)) }

// free returns the contiguous free part of the ring, after having dropped what
// is acknowledged and grown the ring as far as it may; nil when that is too
// little.
func (s *stream) free() []byte {
	if s.ring == nil {
		s.ring = make([]byte, min(firstBuffer, s.max))
	}
	if int64(len(s.ring))-(s.end-s.start) < int64(s.least()) {
		// Acknowledged bytes are kept for late readers while nothing else
		// wants their place.
		s.start = max(s.start, min(s.acked, s.end))
		if int64(len(s.ring))-(s.end-s.start) < int64(len(s.ring)/2) && len(s.ring) < s.cap() {
			s.grow(min(2*len(s.ring), s.cap()))
		}
		if int64(len(s.ring))-(s.end-s.start) < int64(s.least()) {
			return nil
		}
	}
	at := int(s.pos(s.end))
	n := len(s.ring) - int(s.end-s.start)
	return s.ring[at:min(at+n, len(s.ring))]
}

// cap is the most that the ring may grow to now. A reader acknowledges in large
// steps, so with one the window does not depend on what is kept without.
func (s *stream) cap() int {
	if len(s.o.readers) > 0 {
		return max(len(s.ring), readerWindow)
	}
	return s.max
}

func (s *stream) pos(off int64) int64 { return off % int64(len(s.ring)) }

func (s *stream) grow(size int) {
	bigger := make([]byte, size)
	for off := s.start; off < s.end; {
		from := s.ring[s.pos(off):]
		from = from[:min(int64(len(from)), s.end-off)]
		to := bigger[off%int64(size):]
		off += int64(copy(to, from))
	}
	s.ring = bigger
}

// drop gives up the n oldest bytes.
func (s *stream) drop(n int64) {
	n = min(max(n, 0), s.end-s.start)
	if lost := s.start + n - max(s.acked, s.start); lost > 0 {
		if s.dropped == 0 {
			s.hits.add(hitOutput)
		}
		s.dropped += lost
	}
	s.start += n
}

// commit takes note of n bytes that have been read, and reports whether the
// stream has become drained by them.
func (s *stream) commit(n int, eof bool) bool {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.o.closed {
		return false
	}
	s.end += int64(n)
	s.eof = s.eof || eof
	was := s.drained
	s.drained = was || s.eof || s.target >= 0 && s.end >= s.target
	s.o.wakeReaders()
	return s.drained && !was
}

// ack takes note that all before off has been taken. The caller holds mu.
func (s *stream) ack(off int64) {
	if off = min(off, s.end); off > s.acked {
		s.acked = off
		s.poke()
	}
}

func (s *stream) poke() {
	select {
	case s.space <- struct{}{}:
	default:
	}
}

// interrupt makes the pump look again even while it waits for the program.
func (s *stream) interrupt() {
	s.poke()
	s.f.SetReadDeadline(time.Unix(1, 0))
}

// copyFrom copies bytes from off on into b. The caller holds mu and has
// brought off into the range that is kept.
func (s *stream) copyFrom(b []byte, off int64) int {
	n := 0
	for off+int64(n) < s.end && n < len(b) {
		from := s.ring[s.pos(off+int64(n)):]
		from = from[:min(int64(len(from)), s.end-off-int64(n))]
		n += copy(b[n:], from)
	}
	return n
}

func (s *stream) counts() wire.Counts {
	return wire.Counts{Written: s.end, Dropped: s.dropped, Acked: s.acked}
}
