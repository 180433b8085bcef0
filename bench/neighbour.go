package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// An attack of bench/hostile, and whether it is one of which the sandbox dies
// at once. The others are no breach, or slow ones, and go on.
type attack struct {
	name string
	dies bool
}

var attackList = []attack{
	{"garbage", true}, {"half a frame", false}, {"pings", true}, {"resets", true}, {"settings", true},
	{"headers", true}, {"endless headers", true}, {"empty data", true}, {"bytes one by one", false},
	{"an answer without end", false}, {"window updates", false}, {"window updates (0)", false}, {"log", false},
	{"up: no HTTP/2", true}, {"up: streams, read", true}, {"up: 10,000 streams, unread", true},
	{"up: rapid reset", true}, {"up: pings", true}, {"up: window updates", false},
}

// attackExecs is how many execs of the neighbour's are measured at a time: with
// ten rounds 200 for each attack, so that one outlier makes no p99.
const attackExecs = 20

// neighbour measures the execs of a sandbox while another one of the same
// keeper attacks it, each with limits: the attacker has one processor.
func (e *env) neighbour(ctx context.Context, r *harness.Result) error {
	rounds := max(1, e.rounds/2)
	idle, under, err := e.besiege(ctx, attackList, rounds, r.Logf)
	if err != nil {
		return err
	}
	// The machine may have had something else to do: what looks like a broken
	// promise is measured for as long again, together with the idle neighbour.
	again := slices.DeleteFunc(slices.Clone(attackList), func(a attack) bool { return p99(under[a.name]) <= 2*p99(idle) })
	if len(again) > 0 {
		r.Logf("once more: %v", again)
		i, u, err := e.besiege(ctx, again, rounds, r.Logf)
		if err != nil {
			return err
		}
		idle = append(idle, i...)
		for name, d := range u {
			under[name] = append(under[name], d...)
		}
	}
	r.Add("exec, idle, median", harness.Milliseconds(harness.Median(idle)), "ms")
	r.Add("exec, idle, p99", harness.Milliseconds(p99(idle)), "ms")
	for _, a := range attackList {
		r.Add("median under "+a.name, harness.Milliseconds(harness.Median(under[a.name])), "ms")
	}
	for _, a := range attackList {
		r.AtMost("p99 under "+a.name+" / idle", float64(p99(under[a.name]))/float64(p99(idle)), 2, "times")
	}
	return nil
}

// besiege runs attacks, in turn, and returns how long the neighbour's execs
// took while none attacked and under each. An attacker that should die and does
// not, and a neighbour that does, are errors.
func (e *env) besiege(ctx context.Context, attacks []attack, rounds int, logf func(string, ...any)) (idle []time.Duration, under map[string][]time.Duration, err error) {
	if err := e.buildTool(ctx, "hostile"); err != nil {
		return nil, nil, err
	}
	c, err := e.dial(ctx)
	if err != nil {
		return nil, nil, unavailable(err)
	}
	defer c.Close()
	id, kill, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return nil, nil, err
	}
	defer kill()
	dirs, err := filepath.Glob(filepath.Join(e.rt, "keepers", "*"))
	if err != nil || len(dirs) != 1 {
		return nil, nil, fmt.Errorf("keepers %v, %w", dirs, err)
	}
	s := &siege{e: e, c: c, id: id, keeper: keeperclient.New(dirs[0])}
	defer s.keeper.Close()
	if err := s.prepare(ctx); err != nil {
		return nil, nil, err
	}
	under = map[string][]time.Duration{}
	for round := range rounds {
		for _, a := range attacks {
			i, u, err := s.attack(ctx, a)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", a.name, err)
			}
			idle = append(idle, i...)
			under[a.name] = append(under[a.name], u...)
		}
		logf("round %d: p99 idle %v", round, p99(idle))
	}
	return idle, under, nil
}

// siege is a neighbour and those who attack its keeper.
type siege struct {
	e      *env
	c      *client.Client
	id     string
	keeper *keeperclient.Client
	root   string
}

// prepare makes a root for the attackers: the program is all that they need.
func (s *siege) prepare(ctx context.Context) error {
	s.root = filepath.Join(s.e.dir, "empty")
	for _, dir := range []string{"", "proc", "sys", "dev", "tmp", ".belljar"} {
		if err := os.MkdirAll(filepath.Join(s.root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{s.e.dir, s.e.tools} { // a sandbox's own ids must come by
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	_, err := s.execs(ctx, attackExecs) // warm
	return err
}

// attack measures the neighbour before and during one attack.
func (s *siege) attack(ctx context.Context, a attack) (idle, under []time.Duration, err error) {
	id := sandbox.NewID()
	limits := sandbox.DefaultLimits(1)
	limits.CPUs, limits.MemoryBytes = 1, 256<<20
	_, err = s.keeper.Create(ctx, &wire.Create{
		ID: id, Boundary: sandbox.GVisor, Root: driver.Root{Path: s.root}, Guest: s.e.tool("hostile"), Limits: limits,
		Hello: guest.Hello{Generation: 1, Env: map[string]string{"ATTACK": a.name}},
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if _, derr := s.keeper.Delete(context.WithoutCancel(ctx), id); derr != nil && err == nil {
			err = derr
		}
	}()
	if idle, err = s.execs(ctx, attackExecs); err != nil {
		return nil, nil, err
	}
	stop := s.begin(ctx, id)
	defer stop()
	if under, err = s.execs(ctx, attackExecs); err != nil {
		return nil, nil, err
	}
	return idle, under, s.check(ctx, id, a)
}

// begin has the attack begin. The answer, if one comes, is read to its end.
func (s *siege) begin(ctx context.Context, id sandbox.ID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/v1/attack", nil)
		if err != nil {
			return
		}
		resp, err := s.keeper.Guest(id, 1).RoundTrip(req)
		if err != nil {
			return // of the attack
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
	}()
	return func() { cancel(); <-done }
}

// check looks who has died of the attack.
func (s *siege) check(ctx context.Context, id sandbox.ID, a attack) error {
	st, err := s.keeper.Status(ctx, id)
	if err != nil {
		return err
	}
	if a.dies && (st.Running || st.Fault == "") {
		return fmt.Errorf("the attacker lives: %+v", st)
	}
	if st, err = s.keeper.Status(ctx, sandbox.ID(s.id)); err != nil || !st.Running {
		return fmt.Errorf("the neighbour has died: %+v, %w", st, err)
	}
	return nil
}

// execs measures n execs of the neighbour's, one after the other.
func (s *siege) execs(ctx context.Context, n int) ([]time.Duration, error) {
	var out []time.Duration
	for range n {
		began := time.Now()
		exit, err := s.c.Exec(ctx, s.id, client.ExecOptions{Argv: []string{insidePath, "hello"}, Streams: client.Streams{Stdout: io.Discard, Stderr: io.Discard}})
		if err != nil || exit.Status() != 0 {
			return nil, fmt.Errorf("an exec of the neighbour's: %+v, %w", exit, err)
		}
		out = append(out, time.Since(began))
	}
	return out, nil
}

func p99(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[(len(d)*99+99)/100-1]
}
