package manager

import (
	"fmt"
	"strings"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestDistinct(t *testing.T) {
	m := &Manager{}
	made := func(draw string) *launched {
		c := &wire.Created{Reply: guest.HelloReply{Restore: &guest.Restore{Draw: draw}}}
		c.Restore = &sandbox.Restore{Entropy: sandbox.HostLive}
		return &launched{Created: c}
	}
	if err := m.distinct(made("a"), true); err != nil {
		t.Error(err)
	}
	if err := m.distinct(made("b"), true); err != nil {
		t.Error(err)
	}
	if err := m.distinct(made("a"), true); sandbox.KindOf(err) != sandbox.Internal || sandbox.AsError(err).Field != "entropy" {
		t.Errorf("twins: %v", err)
	}
	if err := m.distinct(&launched{Created: &wire.Created{}}, false); err != nil {
		t.Error(err)
	}
	if err := m.distinct(&launched{Created: &wire.Created{}}, true); err == nil {
		t.Error("an image was restored without a word")
	}
	for i := range 2 * maxDraws {
		if !m.draws.fresh(fmt.Sprint(i)) {
			t.Fatalf("%d is not fresh", i)
		}
	}
	if n := len(m.draws.seen); n != maxDraws || len(m.draws.ring) != maxDraws {
		t.Errorf("%d and %d are remembered", n, len(m.draws.ring))
	}
	if m.draws.fresh(fmt.Sprint(2*maxDraws-1)) || m.draws.fresh(fmt.Sprint(maxDraws)) {
		t.Error("a late one was forgotten")
	}
}

func TestMachineID(t *testing.T) {
	dir := t.TempDir()
	key := image.NewKey()
	with := func(s *image.Store) *Manager {
		m := &Manager{o: Options{Images: s}}
		m.ids = m.machineKey()
		return m
	}
	a, b := sandbox.NewID(), sandbox.NewID()
	one, again, other, none := with(image.New(dir, key)), with(image.New(dir, key)), with(image.New(dir, image.NewKey())), with(nil)
	id := one.machineID(a)
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" || id != again.machineID(a) {
		t.Errorf("%q, then %q", id, again.machineID(a))
	}
	if id == one.machineID(b) || id == other.machineID(a) || id == none.machineID(a) {
		t.Error("the same ID for another machine, or another for the same")
	}
}

func TestHookMessage(t *testing.T) {
	for _, tt := range []struct {
		hook guest.Hook
		want string
	}{
		{guest.Hook{Name: "a", Exit: sandbox.Exit{Code: 3}}, `the hook "a" ended with exit code 3`},
		{guest.Hook{Name: "a\x1b", Exit: sandbox.Exit{Code: 3}, Output: "x\n\x1b[2J"}, `the hook "a\x1b" ended with exit code 3, and wrote "x\n\x1b[2J"`},
		{guest.Hook{Name: "a", Exit: sandbox.Exit{Code: -1, Signal: 9, TimedOut: true}}, `the hook "a" was killed: its time was over`},
		{guest.Hook{Name: "a", Exit: sandbox.Exit{Code: -1, Signal: 11}}, `the hook "a" was ended by signal 11`},
		{guest.Hook{Name: "a", Error: "no"}, `the hook "a" could not be started: no`},
	} {
		if got := hookMessage(&tt.hook); got != tt.want || !tt.hook.Failed() {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
