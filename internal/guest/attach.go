package guest

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// keepaliveEvery is how long a reader waits in silence before it says so.
const keepaliveEvery = 30 * time.Second

// reader is one attached reader of a process.
type reader struct {
	wake chan struct{}
}

func (r *reader) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (s *Server) getOutput(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	var off [2]int64
	for i, name := range []string{"stdout", "stderr"} {
		if off[i], err = q.number(name); err != nil {
			return err
		}
	}
	return p.stream(q, off, nil)
}

// startOutput answers a start with the process and then its output.
func (p *process) startOutput(q *request) error {
	info := p.status()
	status, err := json.Marshal(info)
	if err == nil && len(status) > wire.MaxPayload {
		info.Argv = nil // the caller knows them
		status, err = json.Marshal(info)
	}
	if err != nil || len(status) > wire.MaxPayload {
		return sandbox.Errorf(sandbox.Internal, "the process cannot be described in one frame").WithCause(err)
	}
	first := make([]byte, wire.HeaderLen, wire.HeaderLen+len(status))
	wire.Frame{Type: wire.FrameJSON, Len: uint32(len(status))}.Put(first)
	return p.stream(q, [2]int64{}, append(first, status...))
}

// stream sends first, and then frames from off on.
func (p *process) stream(q *request, off [2]int64, first []byte) error {
	r, err := p.attach(off)
	if err != nil {
		return err
	}
	defer p.detach(r)
	q.w.Header().Set("Content-Type", "application/octet-stream")
	q.w.WriteHeader(http.StatusOK)
	if _, err := q.w.Write(first); err != nil {
		return errBroken
	}
	return p.copyOut(q, r, off)
}

// attach registers a reader that begins at off.
func (p *process) attach(off [2]int64) (*reader, error) {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	for i, name := range []string{"stdout", "stderr"} {
		end := int64(0)
		if i < len(p.streams) {
			end = p.streams[i].end
		}
		if off[i] > end {
			return nil, sandbox.Errorf(sandbox.Invalid, "the process has written %d bytes only", end).
				WithField(name, strconv.FormatInt(off[i], 10))
		}
	}
	r := &reader{wake: make(chan struct{}, 1)}
	r.poke()
	p.out.readers[r] = struct{}{}
	p.lease.renew()
	for _, s := range p.streams {
		s.poke()
	}
	return r, nil
}

func (p *process) detach(r *reader) {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	delete(p.out.readers, r)
	if len(p.out.readers) == 0 {
		p.out.heldUntil = time.Now().Add(p.server.cfg.ReaderGrace)
		if !p.out.exited {
			p.lease.count()
		}
		for _, s := range p.streams {
			s.poke()
		}
	}
}

// copyOut sends frames from off on until the exit frame.
func (p *process) copyOut(q *request, r *reader, off [2]int64) error {
	flush := http.NewResponseController(q.w).Flush
	silence := time.NewTimer(keepaliveEvery)
	defer silence.Stop()
	quiet := false // the silence lasted
	for {
		sent, err := p.sendAvailable(q.w, &off, quiet)
		if err != nil {
			return errBroken
		}
		quiet = false
		if sent == sentExit {
			return nil
		}
		if err := flush(); err != nil {
			return errBroken
		}
		silence.Reset(keepaliveEvery)
		select {
		case <-r.wake:
		case <-silence.C:
			quiet = true
		case <-q.ctx.Done():
			return errBroken
		}
	}
}

// sendAvailable writes all frames that there are now.
func (p *process) sendAvailable(w http.ResponseWriter, off *[2]int64, quiet bool) (outcome, error) {
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	for {
		n, what := p.nextFrames(buf[:], off)
		if what == sentNothing && quiet {
			wire.Frame{Type: wire.FrameKeepalive}.Put(buf[:])
			n = wire.HeaderLen
		}
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return what, err
			}
		}
		if what == sentExit {
			p.out.mu.Lock()
			p.out.told = true
			p.out.mu.Unlock()
		}
		if what != sentData {
			return what, nil
		}
	}
}

type outcome int

const (
	sentNothing outcome = iota
	sentData
	sentExit
)

// nextFrames fills b with frames and moves off on. One lock for both streams,
// so a reader sees the exit only after the last byte of either.
func (p *process) nextFrames(b []byte, off *[2]int64) (n int, what outcome) {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	p.turn++ // neither stream starves the other
	for k := range p.streams {
		i := (k + p.turn) % len(p.streams)
		s := p.streams[i]
		if lost := s.start - off[i]; lost > 0 && len(b)-n >= wire.HeaderLen+8 {
			wire.Frame{Type: wire.FrameGap, Stream: s.kind, Len: 8, Offset: uint64(off[i])}.Put(b[n:])
			binary.BigEndian.PutUint64(b[n+wire.HeaderLen:], uint64(lost))
			n += wire.HeaderLen + 8
			off[i] += lost
		}
		if s.end > off[i] && off[i] >= s.start && len(b)-n > wire.HeaderLen {
			got := s.copyFrom(b[n+wire.HeaderLen:min(len(b), n+wire.HeaderLen+wire.MaxPayload)], off[i])
			wire.Frame{Type: wire.FrameData, Stream: s.kind, Len: uint32(got), Offset: uint64(off[i])}.Put(b[n:])
			n += wire.HeaderLen + got
			off[i] += int64(got)
		}
	}
	switch {
	case n > 0:
		return n, sentData
	case !p.out.done && !p.out.closed:
		return 0, sentNothing
	}
	body, _ := json.Marshal(p.exit)
	wire.Frame{Type: wire.FrameExit, Len: uint32(len(body))}.Put(b)
	return wire.HeaderLen + copy(b[wire.HeaderLen:], body), sentExit
}

func (s *Server) postAck(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	var a wire.Ack
	if err := q.decode(&a); err != nil {
		return err
	}
	p.out.mu.Lock()
	for i, off := range []int64{a.Stdout, a.Stderr} {
		if i < len(p.streams) {
			p.streams[i].ack(off)
		}
	}
	p.out.mu.Unlock()
	return noContent(q)
}
