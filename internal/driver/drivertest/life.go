package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

func (s *suite) probe() {
	began := time.Now()
	r := s.f.Driver.Probe(s.ctx())
	if took := time.Since(began); took > time.Second {
		s.Errorf("a probe took %v", took)
	}
	if r.Boundary != s.f.Driver.Boundary() {
		s.Errorf("boundary %s in the report of %s", r.Boundary, s.f.Driver.Boundary())
	}
	for _, c := range r.Checks {
		if c.Name == "" || c.Verdict != driver.Yes && c.Reason == "" {
			s.Errorf("a check without name or reason: %+v", c)
		}
	}
	if c := r.Capabilities; c.Entropy == "" || c.Clock == "" {
		s.Errorf("capabilities do not say where entropy and clock come from: %+v", c)
	}
}

func (s *suite) handle() {
	req := s.request()
	a, err1 := s.f.Driver.Handle(req)
	b, err2 := s.f.Driver.Handle(req)
	if err1 != nil || err2 != nil {
		s.Fatalf("handle: %v, %v", err1, err2)
	}
	ja, err1 := json.Marshal(a)
	jb, err2 := json.Marshal(b)
	if err1 != nil || err2 != nil || !bytes.Equal(ja, jb) {
		s.Errorf("two handles of one request differ: %s, %s", ja, jb)
	}
	if a.ID != req.ID || a.Dir != req.Dir || a.Boundary != s.f.Driver.Boundary() {
		s.Errorf("handle %s does not name %s in %s", ja, req.ID, req.Dir)
	}
	if left := list(s, req.Dir); len(left) > 0 {
		s.Errorf("Handle has made %v", left)
	}
	s.gone(a)
}

func (s *suite) life() {
	b := s.running()
	b.ask("GET", "/v1/ping", nil)
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill: %v", describe(err))
	}
	if e := b.waitExit(); e.Signal == 0 && e.Code == 0 {
		s.Errorf("exit %+v of a killed sandbox", e)
	}
	b.destroy()
	b.destroy() // again
}

func (s *suite) exitCode() {
	for _, code := range []string{"0", "7"} {
		b := s.running()
		b.try("POST", "/v1/test/exit?code="+code, nil) // the end may cut the answer off
		e := b.waitExit()
		if got := map[string]int{"0": 0, "7": 7}[code]; e.Code != got || e.Signal != 0 || e.OOM || e.At.IsZero() {
			s.Errorf("exit %+v, want code %s", e, code)
		}
		b.destroy()
	}
}

// noGuestBeforeStart looks for bytes on the down channel: a guest speaks as
// soon as it runs.
func (s *suite) noGuestBeforeStart() {
	b := s.create(s.request())
	down := b.inst.Channels().Down
	down.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := down.Read(make([]byte, 1)); n > 0 || err == nil {
		s.Error("the guest spoke before Start")
	}
	down.SetReadDeadline(time.Time{})
	if again := b.inst.Channels(); again != b.inst.Channels() || again.Down != down {
		s.Error("later calls of Channels return other values")
	}
	b.start()
	b.destroy()
}

func (s *suite) startOnce() {
	b := s.running()
	if err := b.inst.Start(s.ctx()); err == nil {
		s.Error("a second Start succeeded")
	}
	b.ask("GET", "/v1/ping", nil) // and did no harm
	b.destroy()
	b = s.create(s.request())
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill before start: %v", describe(err))
	}
	if err := b.inst.Start(s.ctx()); err == nil {
		s.Error("Start after Kill succeeded")
	}
	b.destroy()
}

func (s *suite) kill() {
	b := s.running()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := b.inst.Kill(s.ctx()); err != nil {
				s.Errorf("kill: %v", describe(err))
			}
		})
	}
	wg.Wait()
	// Kill has returned, so no process is left: not even now.
	if pids := naming(string(b.req.ID)); len(pids) > 0 {
		s.Errorf("processes after Kill: %v", pids)
	}
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill of the dead: %v", describe(err))
	}
	b.waitExit()
	b.destroy()
}

func (s *suite) children() {
	if !s.f.Spawns {
		s.Skip("probe: this guest starts no processes")
	}
	b := s.running()
	b.ask("POST", "/v1/test/spawn?n=5", nil)
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill: %v", describe(err))
	}
	if pids := naming(string(b.req.ID)); len(pids) > 0 {
		s.Errorf("children in sessions of their own live on: %v", pids)
	}
	b.destroy()
}

func (s *suite) wait() {
	b := s.running()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.inst.Wait(ctx); err == nil {
		s.Error("Wait returned while the sandbox runs")
	}
	exits := make(chan sandbox.Exit, 10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { exits <- b.waitExit() })
	}
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill: %v", describe(err))
	}
	wg.Wait()
	first := b.waitExit() // after the end too
	for range 8 {
		if e := <-exits; e != first {
			s.Errorf("two answers of Wait: %+v, %+v", e, first)
		}
	}
	b.destroy()
	if e := b.waitExit(); e != first {
		s.Errorf("after Destroy: %+v, before %+v", e, first)
	}
}

func (s *suite) createGivenUp() {
	req := s.request()
	h, err := s.f.Driver.Handle(req)
	if err != nil {
		s.Fatal(err)
	}
	for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(s.Context(), after)
		inst, err := s.f.Driver.Create(ctx, req)
		cancel()
		if err == nil { // it was faster
			inst.Channels().Down.Close()
			inst.Channels().Up.Close()
			if err := inst.Destroy(s.ctx()); err != nil {
				s.Errorf("destroy: %v", describe(err))
			}
		}
		s.gone(h)
		if req.Dir, err = os.MkdirTemp(s.TempDir(), "driver"); err != nil {
			s.Fatal(err)
		}
		req.ID = sandbox.NewID()
		if h, err = s.f.Driver.Handle(req); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *suite) many() {
	n := s.f.Many
	if n == 0 {
		n = 8
	}
	boxes := make([]*box, n)
	reqs := make([]*driver.CreateRequest, n)
	for i := range reqs {
		reqs[i] = s.request()
	}
	var mu sync.Mutex // tryCreate keeps handles
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			h, err := s.f.Driver.Handle(reqs[i])
			if err != nil {
				s.Errorf("handle %d: %v", i, describe(err))
				return
			}
			inst, err := s.f.Driver.Create(s.ctx(), reqs[i])
			if err != nil {
				s.Errorf("create %d: %v", i, describe(err))
				return
			}
			b := &box{s: s, req: reqs[i], handle: h, inst: inst}
			mu.Lock()
			boxes[i] = b
			s.handles = append(s.handles, h)
			mu.Unlock()
			if err := b.tryStart(); err != nil {
				s.Errorf("start %d: %v", i, describe(err))
			}
		})
	}
	wg.Wait()
	for _, b := range boxes {
		if b != nil {
			wg.Go(func() {
				b.closeChannels()
				if err := b.inst.Destroy(s.ctx()); err != nil {
					s.Errorf("destroy: %v", describe(err))
				}
			})
		}
	}
	wg.Wait()
}
