package manager

import (
	"context"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// work is a pause, a resume or a saving on its way. A sandbox has one at a time, which
// outlives its callers and is waited for by all who need its end.
type work struct {
	kind   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done
}

// The kinds of work.
const (
	workPause  = "pause"
	workResume = "resume"
	workSave   = "save"   // a snapshot or fork
	workSettle = "settle" // of what an earlier manager had begun
)

// work has f run unless something is on its way already, waits for the end of
// what is, and tells which kind it was.
func (m *Manager) work(ctx context.Context, e *entry, kind string, f func(ctx context.Context) error) (was string, err error) {
	w, err := m.beginWork(e, kind, f)
	if err != nil {
		return kind, err
	}
	select {
	case <-w.done:
		return w.kind, w.err
	case <-ctx.Done():
		return w.kind, canceled(ctx)
	}
}

func (m *Manager) beginWork(e *entry, kind string, f func(ctx context.Context) error) (*work, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.work != nil {
		return e.work, nil
	}
	if !m.enter() {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the manager is ending")
	}
	ctx, cancel := context.WithCancel(e.ctx)
	w := &work{kind: kind, cancel: cancel, done: make(chan struct{})}
	e.work = w
	go func() {
		defer m.wg.Done()
		w.err = f(ctx)
		cancel()
		e.mu.Lock()
		e.work = nil
		e.mu.Unlock()
		close(w.done)
	}()
	return w, nil
}

// stopWork ends what is on its way with a sandbox and waits for that.
func (e *entry) stopWork(ctx context.Context) error {
	e.mu.Lock()
	w := e.work
	e.mu.Unlock()
	if w == nil {
		return nil
	}
	w.cancel()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return canceled(ctx)
	}
}

// awake waits until the sandbox runs, resuming it when it is paused.
func (m *Manager) awake(ctx context.Context, e *entry) error {
	for ctx.Err() == nil {
		sb, changed := e.watch()
		switch sb.State {
		case sandbox.Running:
			return nil
		case sandbox.Paused:
			if was, err := m.work(ctx, e, workResume, func(ctx context.Context) error { return m.resumeNow(ctx, e) }); err != nil && was != workPause {
				return err
			}
		case sandbox.Pausing, sandbox.Resuming:
			if err := awaitChange(ctx, changed); err != nil {
				return err
			}
		default:
			return notRunning(sb)
		}
	}
	return canceled(ctx)
}

// running waits until the sandbox runs, without resuming it: for those who
// look on. They look at processes, of which there are none any more after a pause
// that kept files alone.
func (e *entry) running(ctx context.Context) error {
	for {
		sb, changed := e.watch()
		switch sb.State {
		case sandbox.Running:
			return nil
		case sandbox.Pausing, sandbox.Paused, sandbox.Resuming:
			if sb.PausedKind == sandbox.KindFiles && sb.State != sandbox.Pausing {
				return sandbox.Errorf(sandbox.NotFound, "the processes of this sandbox were %s", sandbox.ReasonPaused).WithField("id", string(e.id))
			}
			if err := awaitChange(ctx, changed); err != nil {
				return err
			}
		default:
			return notRunning(sb)
		}
	}
}

func awaitChange(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return canceled(ctx)
	}
}

// capabilities remembers what each boundary can do here.
type capabilities struct {
	mu sync.Mutex
	of map[sandbox.Boundary]driver.Capabilities
}

// canSave reports whether a boundary writes images of a kind on this host.
func (m *Manager) canSave(ctx context.Context, b sandbox.Boundary, kind sandbox.SnapshotKind) (bool, error) {
	m.can.mu.Lock()
	defer m.can.mu.Unlock()
	saves := func() bool {
		if kind == sandbox.KindFiles {
			return m.can.of[b].FileSnapshot
		}
		return m.can.of[b].MemoryCheckpoint
	}
	if _, known := m.can.of[b]; known {
		return saves(), nil
	}
	reports, err := m.o.Keepers.Probe(ctx)
	if err != nil {
		return false, err
	}
	m.can.of = map[sandbox.Boundary]driver.Capabilities{}
	for _, r := range reports {
		m.can.of[r.Boundary] = r.Capabilities
	}
	return saves(), nil
}

// retrying calls f until it succeeds or ctx ends, and returns the last error.
func (m *Manager) retrying(ctx context.Context, e *entry, what string, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		m.log.Error(what, "sandbox", e.id, "err", err, "cause", sandbox.AsError(err).Unwrap())
		if !pauseFor(ctx, retryAfter) {
			return err
		}
	}
}

// stopClock keeps what the timeout has left for the time after a pause.
func (r *Record) stopClock() {
	if r.Deadline != 0 {
		r.Remaining = max(time.Duration(r.Deadline-monotonic()), time.Millisecond)
	}
	r.Deadline, r.Sandbox.EndsAt = 0, time.Time{}
}

// startClock has the timeout go on.
func (r *Record) startClock() {
	if left := r.Remaining; left > 0 {
		r.Remaining = 0
		r.Deadline = monotonic() + int64(left)
		r.Sandbox.EndsAt = time.Now().Add(left).Round(0)
	}
}
