package wire

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// MaxClockOffset is how far the clock of a restored guest may be from the
// host's.
const MaxClockOffset = time.Second

// drawLen is the length of a [Restore.Draw].
const drawLen = 64

// maxTook bounds how long a guest can have had a hello.
const maxTook = time.Minute

// check refuses what no guest of ours declares, and bounds its sentences.
func (r *Restore) check() error {
	if b, err := hex.DecodeString(r.Draw); err != nil || len(b) != drawLen/2 || hex.EncodeToString(b) != r.Draw {
		return fmt.Errorf("wire: a draw that is no digest")
	}
	for _, s := range []sandbox.Source{r.Entropy, r.Clock} {
		if s != sandbox.HostLive && s != sandbox.GuestState {
			return fmt.Errorf("wire: a source called %q", Tidy(string(s)))
		}
	}
	if r.Took < 0 || r.Took > maxTook {
		return fmt.Errorf("wire: a hello that took %v", r.Took)
	}
	if len(r.Hooks) > MaxHooks || r.HooksLeft < 0 {
		return fmt.Errorf("wire: %d hooks, and %d that were not run", len(r.Hooks), r.HooksLeft)
	}
	for i := range r.Hooks {
		if err := r.Hooks[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (h *Hook) check() error {
	if len(h.Name) > maxName || len(h.Output) > 3*MaxHookOutput { // made valid UTF-8
		return fmt.Errorf("wire: a hook with a name of %d bytes and %d of output", len(h.Name), len(h.Output))
	}
	h.Name, h.Error = Tidy(h.Name), Tidy(h.Error)
	return checkExit(&h.Exit)
}

// Answers refuses a declaration that does not answer the hello of a restored
// guest, or of one that was not restored. It is for answers that have passed
// [HelloReply.Check].
func (r *Restore) Answers(h *Hello) error {
	switch {
	case r == nil && !h.Restored:
		return nil
	case r == nil:
		return fmt.Errorf("wire: not a word of the restore")
	case !h.Restored:
		return fmt.Errorf("wire: word of a restore that has not been")
	case r.Generation != h.Generation || r.Entropy != h.Entropy || r.Clock != h.Clock:
		return fmt.Errorf("wire: word of another restore")
	}
	return nil
}

// ClockOffset returns how far the guest's clock is from that of the host, which
// sent the hello and had the answer at the given times. What the way there and
// back leaves open is taken for agreement.
func (r *Restore) ClockOffset(sent, answered time.Time) time.Duration {
	way := max(answered.Sub(sent)-r.Took, 0)
	off := r.Now.Sub(sent)/2 + r.Now.Add(r.Took).Sub(answered)/2 // halved first: either may be the longest there is
	switch {
	case off > way/2:
		return off - way/2
	case off < -way/2:
		return off + way/2
	}
	return 0
}
