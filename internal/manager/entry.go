package manager

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// entry is one sandbox in memory.
type entry struct {
	id     sandbox.ID
	ctx    context.Context // ends when the sandbox dies or the manager ends
	cancel context.CancelFunc

	// kills lets one goroutine at a time give the sandbox's resources back.
	kills chan struct{}

	mu       sync.Mutex
	rec      Record
	keeper   Keeper
	events   []sandbox.Event // the newest maxEvents
	changed  chan struct{}   // closed at the next change
	timer    *time.Timer
	captures map[string]*capture
	created  chan struct{} // closed when the create has ended either way
	work     *work         // a pause or resume on its way
	life     int           // counts the times that it has rested
	unpaused int           // timeouts in a row at which it could not be paused
	stop     context.CancelCauseFunc
	hits     map[sandbox.LimitName]int64
	exits    map[string]bool // processes whose exit has been noted
	streams  int             // of output that are open
	looking  bool            // at limits, now and then
	soon     bool            // a look at limits is due
	leases   map[string]*leased
	watching bool // the end of the first command is waited for
	// lost counts by process the bytes of output that were lost and have yet
	// to be noted; losing tells that a goroutine is noting them.
	lost   map[string]int64
	losing bool
}

// maxEvents bounds the events that are kept of one sandbox.
const maxEvents = 1000

func (m *Manager) newEntry(r Record) *entry {
	e := &entry{
		id: r.Sandbox.ID, rec: r,
		kills:    make(chan struct{}, 1),
		changed:  make(chan struct{}),
		created:  make(chan struct{}),
		captures: map[string]*capture{},
		hits:     map[sandbox.LimitName]int64{},
	}
	e.ctx, e.cancel = context.WithCancel(m.ctx)
	return e
}

// snapshot returns the record that callers see.
func (e *entry) snapshot() sandbox.Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.view()
}

// view is snapshot with e.mu held. Slices and maps of a record are never
// changed in place, so a shallow copy is a value.
func (e *entry) view() sandbox.Sandbox { return e.rec.Sandbox }

// on reports whether the sandbox lives on the keeper of that name.
func (e *entry) on(keeper string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec.Keeper == keeper && e.rec.Sandbox.State.Live()
}

// watch returns the record and a channel that is closed when it changes.
func (e *entry) watch() (sandbox.Sandbox, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.view(), e.changed
}

func (e *entry) waitDead(ctx context.Context) (sandbox.Sandbox, error) {
	for {
		sb, changed := e.watch()
		if sb.State == sandbox.Dead {
			return sb, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sb, canceled(ctx)
		}
	}
}

// canceled is the error of a caller that has gone or whose time is over.
func canceled(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the time for the request is over").WithCause(ctx.Err())
	}
	return sandbox.Errorf(sandbox.Canceled, "the request was given up").WithCause(ctx.Err())
}

// update changes the record with f and journals it with the events that f
// returns, in one step: nobody sees what is not written. An error of f or of
// the journal leaves the record as it was.
func (m *Manager) update(e *entry, f func(r *Record) ([]sandbox.Event, error)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := e.rec
	events, err := f(&next)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range events {
		next.Seq++
		events[i].Seq, events[i].Time = next.Seq, now
	}
	if m.o.Journal != nil {
		// A record must not be lost to a caller that goes away.
		if err := m.o.Journal.Put(context.WithoutCancel(e.ctx), &next, events...); err != nil {
			return err
		}
	}
	e.rec = next
	e.events = append(e.events, events...)
	if n := len(e.events) - maxEvents; n > 0 {
		e.events = slices.Delete(e.events, 0, n)
	}
	close(e.changed)
	e.changed = make(chan struct{})
	return nil
}

// move takes the sandbox to another state, with a sentence for its event.
func (m *Manager) move(e *entry, to sandbox.State, message string, also func(r *Record)) error {
	return m.update(e, func(r *Record) ([]sandbox.Event, error) {
		next, err := r.Sandbox.State.To(to)
		if err != nil {
			return nil, err
		}
		r.Sandbox.State = next
		if also != nil {
			also(r)
		}
		return []sandbox.Event{{Kind: sandbox.EventState, State: next, Message: message}}, nil
	})
}

// note adds an event and nothing else. It is lost when the journal fails,
// which the log tells.
func (m *Manager) note(e *entry, ev sandbox.Event) {
	err := m.update(e, func(*Record) ([]sandbox.Event, error) { return []sandbox.Event{ev}, nil })
	if err != nil {
		m.log.Error("an event was not written", "sandbox", e.id, "err", err)
	}
}

// Events returns the events after since, whether more can come, and a channel
// that is closed when they have.
func (m *Manager) Events(ref string, since int64) (events []sandbox.Event, more <-chan struct{}, err error) {
	e, err := m.find(ref)
	if err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		if ev.Seq > since {
			events = append(events, ev)
		}
	}
	if e.rec.Sandbox.State == sandbox.Dead {
		return events, nil, nil
	}
	return events, e.changed, nil
}

// monotonic reads the clock that a record's deadline is told in.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot fail for this clock
	}
	return ts.Nano()
}

// SetTimeout has the sandbox end d from now, or from its resume when it is
// paused; 0 takes the timeout away.
func (m *Manager) SetTimeout(ref string, d time.Duration) (sandbox.Sandbox, error) {
	if d < 0 || d > sandbox.MaxTimeout {
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Invalid, "a timeout lies between 0 (none) and %v", sandbox.MaxTimeout).
			WithField("timeout", d.String())
	}
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = m.update(e, func(r *Record) ([]sandbox.Event, error) {
		if s := r.Sandbox.State; s == sandbox.Killing || s == sandbox.Dead {
			return nil, sandbox.Errorf(sandbox.Conflict, "a sandbox that is %s has no timeout", s)
		}
		r.setDeadline(d)
		return nil, nil
	})
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	m.arm(e)
	return e.snapshot(), nil
}

func (r *Record) setDeadline(d time.Duration) {
	r.Timeout, r.Remaining = d, 0
	r.Deadline, r.Sandbox.EndsAt = 0, time.Time{}
	switch r.Sandbox.State {
	case sandbox.Pausing, sandbox.Paused, sandbox.Resuming:
		r.Remaining = d // paused time does not count
		return
	}
	if d == 0 {
		return
	}
	r.Deadline = monotonic() + int64(d)
	r.Sandbox.EndsAt = time.Now().Add(d).Round(0)
}

// arm sets the timer to the record's deadline.
func (m *Manager) arm(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	at := e.rec.Deadline
	if at == 0 || e.rec.Sandbox.State != sandbox.Running {
		return
	}
	e.timer = time.AfterFunc(time.Duration(at-monotonic()), func() { m.expire(e, at) })
}

// How often, and how long after one another, it is tried to pause a sandbox
// whose timeout is over. Then it is killed: whoever is inside must not gain time
// by what keeps it from being saved.
const (
	pauseTries = 3
	pauseAgain = 10 * time.Second
)

// expire kills or pauses a sandbox whose deadline, still the one that was armed,
// is over.
func (m *Manager) expire(e *entry, armed int64) {
	e.mu.Lock()
	current := e.rec.Deadline == armed && e.rec.Sandbox.State == sandbox.Running
	e.mu.Unlock()
	if !current || !m.enter() {
		return
	}
	defer m.wg.Done()
	m.note(e, sandbox.Event{Kind: sandbox.EventLimit, Limit: sandbox.LimitTime, Message: "the sandbox's timeout is over"})
	if e.snapshot().OnTimeout == sandbox.OnTimeoutPause && m.pauseExpired(e) {
		return
	}
	if _, err := m.kill(m.ctx, e, sandbox.EndTimeout); err != nil {
		m.log.Warn("a sandbox whose time is over could not be killed yet", "sandbox", e.id, "err", err)
	}
}

// pauseExpired pauses a sandbox whose time is over, or gives it a little more
// after which it is tried again. It reports false when there is no more hope.
func (m *Manager) pauseExpired(e *entry) bool {
	err := m.pause(m.ctx, e, pausing{kind: sandbox.KindMemory, timeout: true})
	if err == nil || m.ctx.Err() != nil {
		return true
	}
	e.mu.Lock()
	e.unpaused++
	hopeless := e.unpaused >= pauseTries || sandbox.KindOf(err) == sandbox.Unsupported
	e.mu.Unlock()
	if hopeless {
		return false
	}
	err = m.update(e, func(r *Record) ([]sandbox.Event, error) {
		r.Deadline = monotonic() + int64(min(pauseAgain, r.Timeout))
		return nil, nil
	})
	m.arm(e)
	return err == nil
}

// spawn runs f in a goroutine that Close waits for, unless the manager is
// ending.
func (m *Manager) spawn(f func()) {
	if m.enter() {
		go func() {
			defer m.wg.Done()
			f()
		}()
	}
}

// enter counts a goroutine that Close waits for, unless the manager is ending;
// the caller ends with wg.Done.
func (m *Manager) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Add(1)
	return true
}
