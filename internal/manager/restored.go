package manager

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxDraws bounds the draws of restored guests that are remembered, the oldest
// go first.
const maxDraws = 1 << 14

// draws tells whether what a restored guest has drawn is what another one has:
// both would make the same keys. It is safe for concurrent use.
type draws struct {
	mu   sync.Mutex
	seen map[string]struct{}
	ring []string // in the order in which they came
	next int
}

// fresh reports whether nobody has drawn this before, and remembers it.
func (d *draws) fresh(draw string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, old := d.seen[draw]; old {
		return false
	}
	if d.seen == nil {
		d.seen = map[string]struct{}{}
	}
	d.seen[draw] = struct{}{}
	if len(d.ring) < maxDraws {
		d.ring = append(d.ring, draw)
		return true
	}
	delete(d.seen, d.ring[d.next])
	d.ring[d.next] = draw
	d.next = (d.next + 1) % maxDraws
	return true
}

// distinct refuses a sandbox that came from an image and cannot be told from
// another one that did.
func (m *Manager) distinct(made *launched, image bool) error {
	declared := made.Reply.Restore
	switch {
	case declared == nil && made.Restore == nil && !image:
		return nil
	case declared == nil || made.Restore == nil:
		return badGuest("not a word of the restore")
	case !m.draws.fresh(declared.Draw):
		return sandbox.Errorf(sandbox.Internal, "the restored sandbox has drawn the same random bytes as another one").
			WithField("entropy", string(made.Restore.Entropy)).WithHint("try again; if it stays so, make a new sandbox")
	}
	return nil
}

// noteHooks tells of the hooks that did not do what they were there for. A
// sandbox with such a hook runs all the same: only from within can it be mended.
func (m *Manager) noteHooks(e *entry, made *launched) {
	r := made.Reply.Restore
	if r == nil {
		return
	}
	for i := range r.Hooks {
		if r.Hooks[i].Failed() {
			m.note(e, sandbox.Event{Kind: sandbox.EventRestore, Message: hookMessage(&r.Hooks[i])})
		}
	}
	if r.HooksLeft > 0 {
		m.note(e, sandbox.Event{Kind: sandbox.EventRestore, Message: fmt.Sprintf("%d hooks were not run: at most %d run, in %v", r.HooksLeft, guest.MaxHooks, guest.HookTime)})
	}
}

// hookMessage is a sentence about a hook that failed. Its end is the guest's own
// word.
func hookMessage(h *guest.Hook) string {
	how := fmt.Sprintf("ended with exit code %d", h.Exit.Code)
	switch {
	case h.Error != "":
		how = "could not be started: " + h.Error
	case h.Exit.TimedOut:
		how = "was killed: its time was over"
	case h.Exit.Signal != 0:
		how = fmt.Sprintf("was ended by signal %d", h.Exit.Signal)
	}
	text := fmt.Sprintf("the hook %q %s", h.Name, how)
	if out := strings.TrimSpace(h.Output); out != "" {
		text += fmt.Sprintf(", and wrote %q", out)
	}
	return text
}

// machineKey draws what the machine IDs of this installation are made with, or
// of this process where there is no installation's key.
func (m *Manager) machineKey() []byte {
	if m.o.Images != nil {
		return m.o.Images.Key().Derive("machine-id")
	}
	b := make([]byte, 32)
	rand.Read(b)
	return b
}

// machineID is what /etc/machine-id says in a sandbox: the same as long as it is
// the same sandbox, and no other's. It has the form of a random UUID, as
// machine-id(5) wants it.
func (m *Manager) machineID(id sandbox.ID) string {
	h := hmac.New(sha256.New, m.ids)
	h.Write([]byte(id))
	b := h.Sum(nil)[:16]
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return hex.EncodeToString(b)
}
