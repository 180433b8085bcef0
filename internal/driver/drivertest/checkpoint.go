package drivertest

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// checkpoint saves a sandbox that goes on and one that does not, and restores
// either: each goes on from where it was saved, as often as it is restored.
func (s *suite) checkpoint() {
	r := s.f.Driver.Probe(s.ctx())
	if !r.Capabilities.MemoryCheckpoint {
		s.Skip("probe: this driver saves no memory here")
	}
	b := s.running()
	b.counts("1")
	kept := b.save(true, 2)
	b.counts("2")
	last := b.save(false, 0)
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill of a sandbox that was saved and stopped: %v", describe(err))
	}
	b.waitExit()
	b.destroy()

	for _, c := range []struct{ dir, next string }{{last, "3"}, {kept, "2"}, {last, "3"}} {
		again := s.create(s.request())
		if err := again.inst.(driver.Restorer).Restore(s.ctx(), c.dir); err != nil {
			s.Fatalf("restore: %v", describe(err))
		}
		if err := again.inst.(driver.Restorer).Restore(s.ctx(), c.dir); err == nil {
			s.Error("a second restore succeeded")
		}
		if err := again.inst.Start(s.ctx()); err == nil {
			s.Error("a start of what was restored succeeded")
		}
		if err := again.hello(again.inst.Channels().Down, 3); err != nil {
			s.Fatalf("hello after a restore: %v", describe(err))
		}
		again.counts(c.next)
		again.destroy()
	}

	nothing := s.create(s.request())
	if err := nothing.inst.(driver.Checkpointer).Checkpoint(s.ctx(), s.imageDir(), true); err == nil {
		s.Error("a sandbox was saved that had not started")
	}
	if err := nothing.inst.(driver.Restorer).Restore(s.ctx(), s.imageDir()); sandbox.KindOf(err) != sandbox.NotFound {
		s.Errorf("a restore of nothing: %v, want not_found", err)
	}
	nothing.destroy()
}

// counts asks the guest to count on.
func (b *box) counts(want string) {
	b.s.Helper()
	if got := b.ask("POST", "/v1/test/count", nil); got != want {
		b.s.Errorf("the guest counts %q, want %q", got, want)
	}
}

func (s *suite) imageDir() string {
	s.Helper()
	dir, err := os.MkdirTemp(s.TempDir(), "image")
	if err != nil {
		s.Fatal(err)
	}
	return dir
}

// save brings the guest to rest and saves it. One that goes on is spoken to
// again, under a generation.
func (b *box) save(leaveRunning bool, generation uint64) (dir string) {
	b.s.Helper()
	conn := b.rest()
	dir = b.s.imageDir()
	c := b.inst.(driver.Checkpointer)
	full := b.s.imageDir()
	for _, name := range []string{"state", "pages-meta", "pages"} {
		if err := os.WriteFile(filepath.Join(full, name), nil, 0o600); err != nil {
			b.s.Fatal(err)
		}
	}
	if err := c.Checkpoint(b.s.ctx(), full, leaveRunning); err == nil {
		b.s.Error("an image was written over another")
	}
	if err := c.Checkpoint(b.s.ctx(), dir, leaveRunning); err != nil {
		b.s.Fatalf("checkpoint: %v", describe(err))
	}
	if !leaveRunning {
		conn.Close()
		return dir
	}
	if err := b.hello(conn, generation); err != nil {
		b.s.Fatalf("hello after a checkpoint: %v", describe(err))
	}
	return dir
}

// rest ends the conversation with the guest.
func (b *box) rest() net.Conn {
	b.s.Helper()
	seam := make([]byte, channel.SeamLen)
	rand.Read(seam)
	r, err := http.NewRequestWithContext(b.s.ctx(), http.MethodPost, "http://guest/v1/quiesce", bytes.NewReader(nil))
	if err != nil {
		b.s.Fatal(err)
	}
	r.Header.Set(guest.HeaderSeam, hex.EncodeToString(seam))
	resp, err := b.host.RoundTrip(r)
	if err != nil {
		b.s.Fatalf("quiesce: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		b.s.Fatalf("quiesce: status %d", resp.StatusCode)
	}
	conn, err := b.host.Split(b.s.ctx(), seam)
	if err != nil {
		b.s.Fatalf("split: %v", describe(err))
	}
	return conn
}
