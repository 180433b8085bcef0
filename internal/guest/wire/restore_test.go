package wire_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestRestoreCheck(t *testing.T) {
	hello := wire.Hello{Generation: 3, Restored: true, Entropy: sandbox.HostLive, Clock: sandbox.HostLive}
	for _, tt := range []struct {
		name string
		edit func(r *wire.Restore)
		good bool
	}{
		{"ours", func(*wire.Restore) {}, true},
		{"a hook", func(r *wire.Restore) { r.Hooks = []wire.Hook{{Name: "a", Exit: sandbox.Exit{Code: 1}, Output: "x"}} }, true},
		{"no draw", func(r *wire.Restore) { r.Draw = "" }, false},
		{"a short draw", func(r *wire.Restore) { r.Draw = r.Draw[:62] }, false},
		{"a draw in capitals", func(r *wire.Restore) { r.Draw = strings.Repeat("AB", 32) }, false},
		{"no digits", func(r *wire.Restore) { r.Draw = strings.Repeat("x", 64) }, false},
		{"no source", func(r *wire.Restore) { r.Clock = "" }, false},
		{"time runs backwards", func(r *wire.Restore) { r.Took = -1 }, false},
		{"a year", func(r *wire.Restore) { r.Took = 365 * 24 * time.Hour }, false},
		{"many hooks", func(r *wire.Restore) { r.Hooks = make([]wire.Hook, wire.MaxHooks+1) }, false},
		{"fewer than none", func(r *wire.Restore) { r.HooksLeft = -1 }, false},
		{"a long name", func(r *wire.Restore) { r.Hooks = []wire.Hook{{Name: strings.Repeat("x", 300)}} }, false},
		{"long output", func(r *wire.Restore) { r.Hooks = []wire.Hook{{Output: strings.Repeat("x", 1<<16)}} }, false},
		{"no exit code", func(r *wire.Restore) { r.Hooks = []wire.Hook{{Exit: sandbox.Exit{Code: 1000}}} }, false},
		{"another generation", func(r *wire.Restore) { r.Generation = 2 }, false},
		{"another source", func(r *wire.Restore) { r.Entropy = sandbox.GuestState }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &wire.Restore{
				Generation: 3, Entropy: sandbox.HostLive, Clock: sandbox.HostLive, Draw: strings.Repeat("0a", 32), Now: time.Now(),
			}
			tt.edit(r)
			reply := wire.HelloReply{Restore: r}
			err := reply.Check(nil)
			if err == nil {
				err = r.Answers(&hello)
			}
			if (err == nil) != tt.good {
				t.Errorf("got %v", err)
			}
		})
	}
	plain := hello
	plain.Restored = false
	if (&wire.Restore{}).Answers(&plain) == nil {
		t.Error("word of a restore that has not been was taken")
	}
	var none *wire.Restore
	if none.Answers(&plain) != nil || none.Answers(&hello) == nil {
		t.Error("no word is right for what was not restored, and wrong for what was")
	}
}

func TestClockOffset(t *testing.T) {
	sent := time.Now()
	at := func(d time.Duration) time.Time { return sent.Add(d) }
	for _, tt := range []struct {
		name           string
		now, took, way time.Duration // way: from sent to answered
		want           time.Duration
	}{
		{"agreed", 5 * time.Millisecond, 0, 10 * time.Millisecond, 0},
		{"as the hello left", 0, 0, 10 * time.Millisecond, 0},
		{"before the hello", -2 * time.Second, 0, 10 * time.Millisecond, -2 * time.Second},
		{"after the answer", 2 * time.Second, 0, 10 * time.Millisecond, 2*time.Second - 10*time.Millisecond},
		{"hooks in between", 5 * time.Millisecond, 8 * time.Second, 8*time.Second + 10*time.Millisecond, 0},
		{"off, with hooks", 3 * time.Second, 8 * time.Second, 8*time.Second + 10*time.Millisecond, 3*time.Second - 10*time.Millisecond},
		{"a lie about the time it took", 0, time.Minute, 10 * time.Millisecond, 30*time.Second - 5*time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := wire.Restore{Now: at(tt.now), Took: tt.took}
			if got := r.ClockOffset(sent, at(tt.way)); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	for _, now := range []time.Time{{}, time.Unix(math.MaxInt32*1000, 0), time.Unix(-math.MaxInt32*1000, 0)} {
		r := wire.Restore{Now: now}
		if got := r.ClockOffset(sent, sent); got > -wire.MaxClockOffset && got < wire.MaxClockOffset {
			t.Errorf("%v is %v away", now, got)
		}
	}
}
