package drivertest

import (
	"github.com/belljar-sh/belljar/internal/driver"
)

func (s *suite) another() driver.Driver {
	if s.f.Another != nil {
		return s.f.Another()
	}
	return s.f.Driver
}

// reapTwice reaps as another process would, and once more.
func (s *suite) reapTwice(what string, h driver.Handle) {
	s.Helper()
	for range 2 {
		if err := s.another().Reap(s.ctx(), h); err != nil {
			s.Errorf("reap %s: %v", what, describe(err))
		}
		s.gone(h)
	}
}

// reapAnyState reaps handles of instances that never were, were only created,
// run, have ended and have been destroyed.
func (s *suite) reapAnyState() {
	h, err := s.f.Driver.Handle(s.request())
	if err != nil {
		s.Fatal(err)
	}
	s.reapTwice("what never was", h)

	b := s.create(s.request())
	b.closeChannels()
	s.reapTwice("what never started", b.handle)
	b.destroy()

	b = s.running()
	s.reapTwice("what runs", b.handle)
	b.waitExit() // a driver that still has the instance sees its end
	b.destroy()

	b = s.running()
	b.try("POST", "/v1/test/exit?code=1", nil)
	b.waitExit()
	s.reapTwice("what has ended", b.handle)
	b.destroy()

	b = s.running()
	b.destroy()
	s.reapTwice("what was destroyed", b.handle)
}

func (s *suite) reapElsewhere() {
	if s.f.ReapElsewhere == nil {
		s.Skip("probe: this fixture has no other process")
	}
	b := s.running()
	for range 2 {
		if err := s.f.ReapElsewhere(s.ctx(), b.handle); err != nil {
			s.Errorf("reap: %v", describe(err))
		}
		s.gone(b.handle)
	}
	b.waitExit()
	b.destroy()
}
