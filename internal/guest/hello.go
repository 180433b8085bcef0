package guest

import (
	"context"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// What the guest allows itself: it lives in the sandbox's memory.
const (
	gcPercent   = 50
	memoryLimit = 40 << 20
)

func (s *Server) serveHello(q *request) error {
	var h wire.Hello
	if err := q.decode(&h); err != nil {
		return err
	}
	came := time.Now()
	if err := checkHello(&h); err != nil {
		return err
	}
	draw, err := s.redraw(&h)
	if err != nil {
		return err
	}
	if err := s.admit(&h); err != nil {
		return err
	}
	out := wire.HelloReply{Protocol: wire.Protocol, Build: build.ID()}
	out.BootID = s.settle(&h)
	if h.Restored {
		out.Restore = s.restored(q.ctx, &h, draw)
	}
	s.open()
	out.Users = s.users.names()
	if h.Start != nil {
		p, err := s.start(h.Start)
		if err != nil {
			out.StartError = sandbox.AsError(err)
		} else {
			st := p.status()
			out.Process = &st
		}
	}
	if out.Restore != nil {
		out.Restore.Now, out.Restore.Took = came, time.Since(came)
	}
	err = q.json(out)
	s.tune() // not on the way of the first process
	return err
}

// checkHello refuses a host that speaks another language.
func checkHello(h *wire.Hello) error {
	if h.Protocol != wire.Protocol {
		return sandbox.Errorf(sandbox.Unsupported, "the guest speaks protocol %d and the host %d", wire.Protocol, h.Protocol).
			WithField("protocol", strconv.Itoa(h.Protocol)).WithHint("install the programs of one build together")
	}
	if h.Build != build.ID() {
		return sandbox.Errorf(sandbox.Unsupported, "the guest is of build %s and the host of build %s", build.ID(), h.Build).
			WithField("build", h.Build).WithHint("install the programs of one build together")
	}
	return nil
}

// admit takes the identity on, or refuses it. Nothing is served under it before
// [Server.open].
func (s *Server) admit(h *wire.Hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Generation == 0 || h.Generation < s.hello.Generation {
		return sandbox.Errorf(sandbox.Conflict, "generation %d is over", h.Generation).
			WithField("generation", strconv.FormatUint(h.Generation, 10))
	}
	if h.Generation == s.hello.Generation && h.SandboxID != s.hello.SandboxID {
		return sandbox.Errorf(sandbox.Conflict, "this generation belongs to another sandbox").WithField("sandbox_id", string(h.SandboxID))
	}
	if s.endNow != nil && h.Generation > s.hello.Generation {
		s.endNow() // streams of the old generation
		s.endNow = nil
	}
	if s.endNow == nil {
		s.session, s.endNow = context.WithCancel(s.base)
	}
	s.hello = *h
	s.hello.Start = nil
	return nil
}

// open lets requests in.
func (s *Server) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = true
}

// settle does what a new identity needs and returns the boot ID.
func (s *Server) settle(h *wire.Hello) string {
	s.procs.setLimits(h.Limits.OpenFiles, h.Limits.Processes)
	if s.cfg.Init {
		return s.initSettle(h)
	}
	return readBootID()
}

func readBootID() string {
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [64]byte
	n, _ := unix.Read(fd, b[:])
	return strings.TrimSpace(string(b[:max(n, 0)]))
}

func (s *Server) checkGeneration(r *http.Request) error {
	v := r.Header.Get(wire.HeaderGeneration)
	if v == strconv.FormatUint(s.hello.Generation, 10) {
		return nil
	}
	return sandbox.Errorf(sandbox.Conflict, "the sandbox is at generation %d", s.hello.Generation).WithField(wire.HeaderGeneration, v)
}

// serveQuiesce ends all streams and waits until no request is left; then it
// writes files back. After it the guest waits for the next hello, behind the
// seam when the request names one.
func (s *Server) serveQuiesce(w http.ResponseWriter, r *http.Request) {
	if v := r.Header.Get(wire.HeaderSeam); v != "" {
		seam, err := hex.DecodeString(v)
		if err != nil || !channel.ExpectSeam(r.Context(), seam) {
			reply(w, sandbox.Errorf(sandbox.Invalid, "this is no seam").WithField(wire.HeaderSeam, v))
			return
		}
	}
	if _, err := s.enter(r); err != nil {
		reply(w, err)
		return
	}
	s.mu.Lock()
	s.serving = false
	s.endNow()
	s.endNow = nil
	s.inflight-- // this request
	var idle chan struct{}
	if s.inflight > 0 {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle = s.idle
	}
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-r.Context().Done():
			return
		}
	}
	unix.Sync()
	s.prepareRestore()
	w.WriteHeader(http.StatusNoContent)
}

// hostClock steps the clock when it is off by more than a second and the
// boundary lets the guest do so; elsewhere the clock is the host's.
func hostClock(h *wire.Hello) {
	if h.Time.IsZero() {
		return
	}
	var now syscall.Timeval
	if syscall.Gettimeofday(&now) != nil {
		return
	}
	if d := h.Time.Unix() - now.Sec; d >= -1 && d <= 1 {
		return
	}
	ts := unix.NsecToTimespec(h.Time.UnixNano())
	unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}
