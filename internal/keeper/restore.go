package keeper

import (
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// sources tells, of a box that has been restored and has not had its hello,
// where its random bytes and its time come from.
func (b *box) sources() (restored bool, entropy, clock sandbox.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.restored == nil {
		return false, "", ""
	}
	entropy, clock = b.restored.Sources()
	return true, entropy, clock
}

// came checks what a guest has declared in answer to its first hello after a
// restore, which was sent and answered at the given times, and notes it. A guest
// whose time is not the host's does not run.
func (b *box) came(r *guest.Restore, h *guest.Hello, sent, answered time.Time) error {
	if err := r.Answers(h); err != nil {
		return badHello("%v", err)
	}
	if r == nil {
		return nil
	}
	off := r.ClockOffset(sent, answered)
	if off > guest.MaxClockOffset || off < -guest.MaxClockOffset {
		return sandbox.Errorf(sandbox.Internal, "the clock of the restored sandbox is %v away from the host's", off).
			WithField("clock", string(r.Clock)).WithHint("try again; if it stays so, make a new sandbox")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restored = nil
	b.status.Restore = &sandbox.Restore{
		Generation: r.Generation, Entropy: r.Entropy, Clock: r.Clock, At: answered.Round(0), ClockOffset: off,
	}
	return nil
}
