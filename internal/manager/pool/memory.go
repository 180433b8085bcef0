package pool

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// What a sandbox that waits takes of the host, until one has been measured
// here; and what is left to the host whatever is asked for.
const (
	bootedCost = 10 << 20
	readyCost  = 14 << 20
	reserve    = 256 << 20
)

// costOf is what one sandbox takes, with p.mu held.
func (p *Pool) costOf(how wire.Park) int64 {
	if n := p.cost[how]; n > 0 {
		return n
	}
	if how == wire.Booted {
		return bootedCost
	}
	return readyCost
}

// pressed says why the host has no memory for one more, "" when it has. p.mu is
// held.
func (p *Pool) pressed(how wire.Park) string {
	free, known := available()
	if cost := p.costOf(how); known && free-cost < reserve {
		return "the host has " + mib(free) + " of memory left"
	}
	return ""
}

// affordable checks that the host has the memory for a size beside those of the
// other pools. What waits already is counted as free.
func (p *Pool) affordable(s sandbox.PoolSpec) error {
	free, known := available()
	if !known {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	booted, ready := p.costOf(wire.Booted), p.costOf(wire.Ready)
	need := func(s sandbox.PoolSpec) int64 {
		n := int64(s.Ready)*ready + int64(s.Booted)*booted
		if more := s.Ceiling - s.Ready - s.Booted; more > 0 { // a ceiling that was asked for
			n += int64(more) * ready
		}
		return n
	}
	total := need(s)
	for _, o := range p.sets {
		if !same(o.spec, s) {
			total += need(o.spec)
		}
		for _, e := range o.parked {
			free += e.memory
		}
	}
	if total <= free-reserve {
		return nil
	}
	return sandbox.Errorf(sandbox.ResourceExhausted,
		"the pools would take %s, and the host has %s of which %s stay free: a ready sandbox takes about %s, a booted one %s",
		mib(total), mib(free), mib(reserve), mib(ready), mib(booted)).
		WithField("ready", strconv.Itoa(s.Ready)).WithHint("ask for fewer, or take another pool away: `belljar pool ls` lists them")
}

func mib(n int64) string { return strconv.FormatInt((n+1<<19)>>20, 10) + " MiB" }

// available is how much memory the kernel thinks it can give out without
// swapping.
func available() (bytes int64, known bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		return n << 10, err == nil
	}
	return 0, false
}
