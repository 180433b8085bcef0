package launch_test

import (
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// park has a sandbox wait and returns the claim that it waits for.
func (s *saver) park(how wire.Park) (parked sandbox.ID, claim *wire.Claim, err error) {
	req := *s.req
	req.ID, req.Park = sandbox.NewID(), how
	req.Hello.Hostname = "sandbox"
	_, err = s.Create(s.t.Context(), &req)
	return req.ID, &wire.Claim{
		As: sandbox.NewID(), Root: req.Root, Guest: req.Guest, Limits: req.Limits, Explicit: req.Explicit, Hello: s.req.Hello,
	}, err
}

// claims makes s speak of the sandbox that has been claimed.
func (s *saver) claims(parked sandbox.ID, c *wire.Claim) *wire.Created {
	s.t.Helper()
	made, err := s.Claim(s.t.Context(), parked, c)
	if err != nil {
		s.t.Fatalf("claim: %+v", sandbox.AsError(err))
	}
	s.req.ID = c.As
	return made
}

// TestParkedAndClaimed: a sandbox that waited is nobody's before its claim, and
// in nothing unlike a new one afterwards.
func TestParkedAndClaimed(t *testing.T) {
	for _, how := range []wire.Park{wire.Booted, wire.Ready} {
		t.Run(string(how), func(t *testing.T) {
			s := newSaver(t, "")
			parked, c, err := s.park(how)
			if err != nil {
				t.Fatalf("park: %+v", sandbox.AsError(err))
			}
			g := guestclient.New(s.Guest(parked, 1), "http://keeper", 1)
			if _, err := g.Start(t.Context(), guest.Start{ID: "early", Argv: []string{"true"}}); sandbox.KindOf(err) != sandbox.Conflict {
				t.Errorf("before the claim: %v, want conflict", err)
			}
			c.Hello.Generation, c.Hello.Env = 1, map[string]string{"WHOSE": "mine"}
			c.Hello.Start = &guest.Start{ID: "first", Argv: []string{"/bin/sh", "-c", "echo $WHOSE"}, User: "root"}
			made := s.claims(parked, c)
			if made.Reply.Process == nil || made.Reply.Restore != nil || !made.Running {
				t.Errorf("%+v", made)
			}
			if out := s.read(s.guest(1), "first", 0, true); out != "mine\n" {
				t.Errorf("the first command printed %q", out)
			}
			if out := s.sh(1, "second", "hostname; cat /run/belljar/generation; ls /proc | grep -c '^[0-9]'"); !strings.HasPrefix(out, "box\n1\n") {
				t.Errorf("got %q", out)
			}
			list, err := s.guest(1).Processes(t.Context())
			if err != nil || len(list) != 2 {
				t.Errorf("processes: %+v, %v, want those that were asked for", list, err)
			}
			if _, err := s.Delete(t.Context(), c.As); err != nil {
				t.Errorf("%+v", sandbox.AsError(err))
			}
		})
	}
}

// TestRestoredIntoBooted: an image is restored into a kernel that has booted
// under another name.
func TestRestoredIntoBooted(t *testing.T) {
	s := newSaver(t, "")
	s.create("", 1)
	s.sh(1, "mark", "echo kept >/tmp/mark")
	image := s.save(false, 2)
	parked, c, err := s.park(wire.Booted)
	if err != nil {
		t.Fatalf("park: %+v", sandbox.AsError(err))
	}
	c.Image, c.Hello.Generation = image, 3
	if made := s.claims(parked, c); made.Reply.Restore == nil {
		t.Errorf("nothing is said of the restore: %+v", made.Reply)
	}
	if out := s.sh(3, "look", "cat /tmp/mark; hostname"); out != "kept\nbox\n" {
		t.Errorf("got %q", out)
	}
	// Its image is that of any other.
	again := s.save(false, 4)
	s.create(again, 5)
	if out := s.sh(5, "again", "cat /tmp/mark"); out != "kept\n" {
		t.Errorf("got %q", out)
	}
}

// TestParkCrashPoints kills a keeper as it parks a sandbox and as it is claimed.
func TestParkCrashPoints(t *testing.T) {
	for _, point := range keeper.ParkCrashPoints() {
		for _, how := range []wire.Park{wire.Booted, wire.Ready} {
			t.Run(string(point)+"/"+string(how), func(t *testing.T) {
				mounts := hostMounts(t)
				s := newSaver(t, point)
				parked, c, err := s.park(how)
				if err == nil {
					c.Hello.Generation = 1
					_, err = s.Claim(t.Context(), parked, c)
				}
				if sandbox.KindOf(err) != sandbox.Unavailable {
					t.Errorf("%+v", sandbox.AsError(err))
				}
				<-s.done
				if err := launch.ReapStale(t.Context(), s.opts); err != nil {
					t.Errorf("reap: %+v", sandbox.AsError(err))
				}
				nothingLeft(t, &wire.Create{ID: parked}, mounts)
			})
		}
	}
}
