package keeper_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func (r *running) park(t testing.TB, how wire.Park, root string) sandbox.ID {
	t.Helper()
	req := request(sandbox.NewID())
	req.Park, req.Root.Path = how, root
	c, err := r.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("park: %v", err)
	}
	if c.Parked != how || c.Running || len(c.Limits) != 5 {
		t.Errorf("parked = %+v", c.Status)
	}
	return req.ID
}

func claimOf(root string) *wire.Claim {
	r := request(sandbox.NewID())
	return &wire.Claim{As: r.ID, Root: driver.Root{Path: root}, Limits: r.Limits, Hello: r.Hello}
}

func TestParkAndClaim(t *testing.T) {
	for _, how := range []wire.Park{wire.Booted, wire.Ready} {
		t.Run(string(how), func(t *testing.T) {
			k := start(t, keeper.Options{}, fake.Options{})
			root := t.TempDir()
			parked := k.park(t, how, root)
			if n := k.driver.Seen(fake.Start); n != map[wire.Park]int{wire.Ready: 1}[how] {
				t.Errorf("%d guests have been started", n)
			}
			// It serves nobody.
			for _, gen := range []uint64{0, 7} {
				if resp, _ := k.ask(t, parked, gen, "GET", "/v1/test/cpus", nil); resp.StatusCode != http.StatusConflict {
					t.Errorf("generation %d of a parked one: status %d", gen, resp.StatusCode)
				}
			}
			req := claimOf(root)
			c, err := k.Claim(t.Context(), parked, req)
			if err != nil {
				t.Fatal(err)
			}
			if !c.Running || c.ID != req.As || c.Parked != "" || c.Generation != 7 || len(c.Limits) != 5 || c.CPUsSeen == 0 {
				t.Errorf("claimed = %+v", c.Status)
			}
			if _, body := k.ask(t, req.As, 7, "GET", "/v1/test/cpus", nil); body == "" {
				t.Error("the claimed one does not answer")
			}
			if _, err := k.Status(t.Context(), parked); sandbox.KindOf(err) != sandbox.NotFound {
				t.Errorf("by its old name: %v, want not_found", err)
			}
			if _, err := k.Claim(t.Context(), parked, claimOf(root)); sandbox.KindOf(err) != sandbox.Conflict {
				t.Errorf("a second claim: %v, want conflict", err)
			}
			if _, err := k.Claim(t.Context(), req.As, claimOf(root)); sandbox.KindOf(err) != sandbox.Conflict {
				t.Errorf("a claim of what is claimed: %v, want conflict", err)
			}
			if _, err := k.Delete(t.Context(), req.As); err != nil {
				t.Error(err)
			}
			if list, err := k.List(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("left: %+v, %v", list, err)
			}
		})
	}
}

// Whatever differs from what was parked is refused, and the parked one stays.
func TestClaimOfAnother(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	root := t.TempDir()
	parked := k.park(t, wire.Ready, root)
	for name, change := range map[string]func(*wire.Claim){
		"root":     func(c *wire.Claim) { c.Root.Path = t.TempDir() },
		"binds":    func(c *wire.Claim) { c.Root.Binds = []driver.Bind{{Source: "/usr", Target: "/usr"}} },
		"shifted":  func(c *wire.Claim) { c.Root.Shifted = true },
		"setuid":   func(c *wire.Claim) { c.Root.Setuid = true },
		"memory":   func(c *wire.Claim) { c.Limits.MemoryBytes++ },
		"explicit": func(c *wire.Claim) { c.Explicit.CPUs = true },
		"guest":    func(c *wire.Claim) { c.Guest = "/other" },
		"image":    func(c *wire.Claim) { c.Image = t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			req := claimOf(root)
			change(req)
			if _, err := k.Claim(t.Context(), parked, req); sandbox.KindOf(err) != sandbox.Conflict {
				t.Errorf("got %v, want conflict", err)
			}
		})
	}
	again := k.park(t, wire.Ready, root)
	if _, err := k.Claim(t.Context(), again, claimOf(root)); err != nil {
		t.Errorf("the right claim: %v", err)
	}
	// Another directory of the same name is another root.
	if err := os.Rename(root, root+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Claim(t.Context(), parked, claimOf(root)); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("after the root was replaced: %v, want conflict", err)
	}
	if s, err := k.Status(t.Context(), parked); err != nil || s.Parked != wire.Ready {
		t.Errorf("afterwards: %+v, %v", s, err)
	}
}

func TestParkIsChecked(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	for name, change := range map[string]func(*wire.Create){
		"kind":    func(c *wire.Create) { c.Park = "frozen" },
		"mounts":  func(c *wire.Create) { c.Mounts = make([]wire.Mount, 1) },
		"command": func(c *wire.Create) { c.Hello.Start = &guest.Start{ID: "p", Argv: []string{"true"}} },
		"image":   func(c *wire.Create) { c.Image = "/x" },
	} {
		req := request(sandbox.NewID())
		req.Park, req.Root.Path = wire.Booted, t.TempDir()
		change(req)
		if _, err := k.Create(t.Context(), req); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

// Of many claims of one, one has it.
func TestOneClaimWins(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	root := t.TempDir()
	parked := k.park(t, wire.Ready, root)
	var won, lost atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch _, err := k.Claim(t.Context(), parked, claimOf(root)); {
			case err == nil:
				won.Add(1)
			case sandbox.KindOf(err) == sandbox.Conflict:
				lost.Add(1)
			default:
				t.Errorf("a claim: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 15 {
		t.Errorf("%d have it and %d have not", won.Load(), lost.Load())
	}
}

// A parked one that ends is told of at once, and is nobody's afterwards.
func TestParkedDies(t *testing.T) {
	var down atomic.Pointer[net.Conn]
	k := start(t, keeper.Options{}, fake.Options{Serve: func(ctx context.Context, d, up net.Conn) int {
		down.Store(&d)
		return testguest.Run(ctx, d, up)
	}})
	root := t.TempDir()
	parked := k.park(t, wire.Ready, root)
	waited := make(chan wire.Status, 1)
	go func() {
		s, err := k.Wait(t.Context(), parked)
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waited <- s
	}()
	(*down.Load()).Close()
	if s := <-waited; s.Exit == nil || s.Running || s.Parked != wire.Ready {
		t.Errorf("waited = %+v", s)
	}
	if _, err := k.Claim(t.Context(), parked, claimOf(root)); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("a claim of the dead: %v, want conflict", err)
	}
	if _, err := k.Delete(t.Context(), parked); err != nil {
		t.Error(err)
	}
}

// A kill of a parked one and a claim of it: one of them has it, and nothing is
// left of what was killed.
func TestClaimAgainstKill(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	root := t.TempDir()
	for range 50 {
		parked := k.park(t, wire.Ready, root)
		req := claimOf(root)
		var wg sync.WaitGroup
		var claim error
		wg.Go(func() {
			if _, err := k.Delete(t.Context(), parked); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
		wg.Go(func() { _, claim = k.Claim(t.Context(), parked, req) })
		wg.Wait()
		list, err := k.List(t.Context())
		if err != nil || (claim == nil) != (len(list) == 1) && len(list) != 0 {
			t.Fatalf("claim %v, left %+v, %v", claim, list, err)
		}
		if _, err := k.Delete(t.Context(), req.As); err != nil {
			t.Fatal(err)
		}
	}
}

// A kill of what is being claimed ends the claim.
func TestKillDuringClaim(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	root := t.TempDir()
	parked := k.park(t, wire.Booted, root)
	k.driver.On(fake.Start, fake.Action{Block: true})
	req := claimOf(root)
	ended := make(chan error, 1)
	go func() {
		_, err := k.Claim(t.Context(), parked, req)
		ended <- err
	}()
	eventually(t, "the claim is at work", func() bool { return k.driver.Seen(fake.Start) > 0 })
	if _, err := k.Delete(t.Context(), req.As); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the claim has succeeded")
	}
	if list, err := k.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// Parked ones keep no keeper from ending, nor from its other work.
func TestParkedAndTheKeeper(t *testing.T) {
	root := t.TempDir()
	t.Run("maximum", func(t *testing.T) {
		k := start(t, keeper.Options{MaxSandboxes: 1}, fake.Options{})
		parked := k.park(t, wire.Booted, root)
		if _, err := k.Create(t.Context(), request(sandbox.NewID())); sandbox.KindOf(err) != sandbox.Unavailable {
			t.Errorf("one more: %v, want unavailable", err)
		}
		if _, err := k.Claim(t.Context(), parked, claimOf(root)); err != nil {
			t.Errorf("a claim: %v", err)
		}
	})
	t.Run("drain", func(t *testing.T) {
		k := start(t, keeper.Options{}, fake.Options{})
		k.park(t, wire.Ready, root)
		id := k.create(t)
		if err := k.Stop(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if list, err := k.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != id {
			t.Errorf("left: %+v, %v", list, err)
		}
		if _, err := k.Delete(t.Context(), id); err != nil && sandbox.KindOf(err) != sandbox.Unavailable {
			t.Error(err)
		}
		if err := <-k.ended; err != nil {
			t.Errorf("keeper: %v", err)
		}
		close(k.ended)
	})
	t.Run("idle", func(t *testing.T) {
		k := start(t, keeper.Options{IdleExit: 20 * time.Millisecond}, fake.Options{})
		k.park(t, wire.Ready, root)
		c := keeperclient.New(k.dir)
		if _, err := c.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.Close()
		c.Close()
		if err := <-k.ended; err != nil {
			t.Errorf("keeper: %v", err)
		}
		close(k.ended)
	})
}

// A claim that the guest does not answer gives everything back.
func TestClaimFails(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	root := t.TempDir()
	parked := k.park(t, wire.Booted, root)
	k.driver.On(fake.Start, fake.Action{Err: sandbox.Errorf(sandbox.Internal, "no"), Times: 1})
	if _, err := k.Claim(t.Context(), parked, claimOf(root)); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("got %v, want internal", err)
	}
	if list, err := k.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}
