package manager

import (
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// metricsTime bounds how long a guest may take to count.
const metricsTime = 2 * time.Second

// lookEvery is how often a sandbox with a process at work is asked for limits
// that it has hit. An idle one is left alone.
const lookEvery = 5 * time.Second

// maxExits bounds the exits that are remembered to note each once.
const maxExits = 4096

// firstExit reports whether the exit of a process is new.
func (e *entry) firstExit(id string, at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := id + at.UTC().Format(time.RFC3339Nano)
	if e.exits[key] {
		return false
	}
	if e.exits == nil || len(e.exits) >= maxExits {
		e.exits = map[string]bool{}
	}
	e.exits[key] = true
	return true
}

// busy counts open streams of output. The first one begins the look at limits,
// which ends after the last.
func (m *Manager) busy(e *entry, by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.streams += by
	if e.streams > 0 && !e.looking {
		e.looking = true
		m.spawn(func() { m.lookWhileBusy(e) })
	}
}

func (m *Manager) lookWhileBusy(e *entry) {
	for pauseFor(e.ctx, lookEvery) {
		m.lookAtLimits(e)
		e.mu.Lock()
		if e.streams == 0 {
			e.looking = false
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
	}
}

// lookDelay is how long after an exit the guest is asked: once for many exits,
// and not while the next process is being started.
const lookDelay = 500 * time.Millisecond

// lookSoon has limits looked at after a moment.
func (m *Manager) lookSoon(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.soon {
		return
	}
	e.soon = true
	m.spawn(func() {
		alive := pauseFor(e.ctx, lookDelay)
		e.mu.Lock()
		e.soon = false
		e.mu.Unlock()
		if alive {
			m.lookAtLimits(e)
		}
	})
}

// outputLost adds up output that was overwritten before anybody read it. Gaps
// come as often as a guest likes, so one goroutine notes their sums.
func (m *Manager) outputLost(e *entry, id string, lost int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost == nil {
		e.lost = map[string]int64{}
	}
	e.lost[id] += min(lost, math.MaxInt64-e.lost[id])
	if e.losing {
		return
	}
	e.losing = true
	m.spawn(func() { m.noteLost(e) })
}

// noteLost notes what has been lost, each process once in a lookDelay, until
// nothing more is.
func (m *Manager) noteLost(e *entry) {
	for {
		e.mu.Lock()
		lost := e.lost
		e.lost = nil
		e.losing = len(lost) > 0
		e.mu.Unlock()
		if len(lost) == 0 {
			return
		}
		for id, n := range lost {
			m.note(e, sandbox.Event{
				Kind: sandbox.EventLimit, Limit: sandbox.LimitOutput, Process: id,
				Message: strconv.FormatInt(n, 10) + " bytes of output were overwritten before they were read",
			})
		}
		pauseFor(e.ctx, lookDelay)
	}
}

// lookAtLimits asks the guest and notes each limit whose count has grown.
func (m *Manager) lookAtLimits(e *entry) {
	if mt, err := m.metrics(e.ctx, e); err == nil {
		m.noteHits(e, mt)
	}
}

func (m *Manager) metrics(ctx context.Context, e *entry) (guest.Metrics, error) {
	var mt guest.Metrics
	g, err := m.guest(e)
	if err != nil {
		return mt, err
	}
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	err = g.JSON(ctx, http.MethodGet, "/metrics", nil, nil, &mt)
	maps.DeleteFunc(mt.LimitHits, func(name sandbox.LimitName, _ int64) bool {
		return !slices.ContainsFunc(guestHeld, func(l heldLimit) bool { return l.name == name })
	})
	return mt, err
}

type heldLimit struct {
	name    sandbox.LimitName
	message string
}

// guestHeld are the limits that the guest holds and counts refusals of.
var guestHeld = []heldLimit{
	{sandbox.LimitProcesses, "processes or threads were refused"},
	{sandbox.LimitDisk, "writes were refused: the disk limit is reached"},
	{sandbox.LimitOpenFiles, "open files were refused"},
	{sandbox.LimitOutput, "bytes of output were overwritten before they were read"},
}

// noteHits notes what has grown. Counts are the guest's word: names that are
// not ours are ignored.
func (m *Manager) noteHits(e *entry, mt guest.Metrics) {
	for _, l := range guestHeld {
		n := mt.LimitHits[l.name]
		e.mu.Lock()
		grown := n - e.hits[l.name]
		if grown > 0 {
			e.hits[l.name] = n
		}
		e.mu.Unlock()
		// Output that was lost is noted with its process, when its gap is read.
		if grown > 0 && l.name != sandbox.LimitOutput {
			m.note(e, sandbox.Event{
				Kind: sandbox.EventLimit, Limit: l.name,
				Message: strconv.FormatInt(grown, 10) + " " + l.message,
			})
		}
	}
}

// Stats is what a sandbox uses.
type Stats struct {
	Host  sandbox.Stats
	Guest *guest.Metrics // the guest's word; nil when it does not answer
}

// Stats counts what a running sandbox uses.
func (m *Manager) Stats(ctx context.Context, ref string) (Stats, error) {
	e, err := m.find(ref)
	if err != nil {
		return Stats{}, err
	}
	e.mu.Lock()
	k, sb := e.keeper, e.rec.Sandbox
	e.mu.Unlock()
	if sb.State != sandbox.Running || k == nil {
		return Stats{}, notRunning(sb)
	}
	var out Stats
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if mt, err := m.metrics(ctx, e); err == nil {
			out.Guest = &mt
		}
	}()
	out.Host, err = k.Stats(ctx, e.id)
	<-asked
	if err != nil {
		return Stats{}, err
	}
	if out.Guest != nil {
		m.noteHits(e, *out.Guest)
	}
	return out, nil
}
