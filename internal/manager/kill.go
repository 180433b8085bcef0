package manager

import (
	"cmp"
	"context"
	"strconv"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Kill ends a sandbox and returns its last record when nothing of it is left.
// It is idempotent; of several at once all return when the one has done it. A
// caller that goes away does not stop it.
func (m *Manager) Kill(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return m.kill(ctx, e, sandbox.EndKilled)
}

var endSentence = map[string]string{
	sandbox.EndKilled:   "somebody asked for its end",
	sandbox.EndTimeout:  "its timeout is over",
	sandbox.EndFinished: "its first command has ended",
	sandbox.EndStopped:  "the daemon was stopped with all its sandboxes",
}

func (m *Manager) kill(ctx context.Context, e *entry, reason string) (sandbox.Sandbox, error) {
	if err := m.stopCreate(ctx, e, reason); err != nil {
		return e.snapshot(), err
	}
	if !m.enter() {
		return m.bury(ctx, e, reason, endSentence[reason])
	}
	done := make(chan error, 1)
	go func() {
		defer m.wg.Done()
		// Not the caller's context: a kill that has begun is finished.
		ctx, cancel := context.WithTimeout(m.ctx, cleanupTime)
		defer cancel()
		_, err := m.bury(ctx, e, reason, endSentence[reason])
		done <- err
	}()
	select {
	case err := <-done:
		return e.snapshot(), err
	case <-ctx.Done():
		return e.snapshot(), canceled(ctx)
	}
}

// stopCreate ends a create that is under way and waits for it.
func (m *Manager) stopCreate(ctx context.Context, e *entry, reason string) error {
	e.mu.Lock()
	creating, stop := e.rec.Sandbox.State == sandbox.Creating, e.stop
	e.mu.Unlock()
	if !creating || stop == nil {
		return nil
	}
	stop(sandbox.Errorf(sandbox.Conflict, "the sandbox was killed while it was being created: %s", endSentence[reason]))
	select {
	case <-e.created:
		return nil
	case <-ctx.Done():
		return canceled(ctx)
	}
}

// retryAfter is the pause before a kill that failed is tried again.
const retryAfter = 5 * time.Second

// bury takes a sandbox from any state to Dead. When it fails the sandbox stays
// Killing and is tried again in the background.
func (m *Manager) bury(ctx context.Context, e *entry, reason, message string) (sandbox.Sandbox, error) {
	select {
	case e.kills <- struct{}{}:
		defer func() { <-e.kills }()
	case <-ctx.Done():
		return e.snapshot(), canceled(ctx)
	}
	if sb := e.snapshot(); sb.State == sandbox.Dead {
		return sb, nil
	}
	m.force(e, sandbox.Killing, message, func(r *Record) {
		r.Sandbox.EndReason, r.Sandbox.EndMessage = reason, cmp.Or(message, r.Sandbox.EndMessage)
	})
	m.crash(CrashKillJournalled)
	if err := m.clear(ctx, e); err != nil {
		time.AfterFunc(retryAfter, func() { m.spawn(func() { m.buryAgain(e) }) })
		return e.snapshot(), err
	}
	m.crash(CrashKillDeleted)
	m.buried(e, reason)
	return e.snapshot(), nil
}

// clear ends what is on its way with the sandbox and removes everything of it.
func (m *Manager) clear(ctx context.Context, e *entry) error {
	if err := e.stopWork(ctx); err != nil {
		return err
	}
	if err := m.giveBack(ctx, e); err != nil || m.images == nil {
		return err
	}
	if m.images.Has(e.id) {
		m.crash(CrashPausedKilled)
	}
	return m.images.Remove(e.id)
}

func (m *Manager) buryAgain(e *entry) {
	ctx, cancel := context.WithTimeout(m.ctx, cleanupTime)
	defer cancel()
	if _, err := m.bury(ctx, e, e.snapshot().EndReason, ""); err != nil && m.ctx.Err() == nil {
		m.log.Error("a sandbox cannot be given back yet", "sandbox", e.id, "err", err)
	}
}

// buried makes the sandbox Dead: nothing of it is left.
func (m *Manager) buried(e *entry, reason string) {
	m.force(e, sandbox.Dead, "nothing of it is left", func(r *Record) {
		r.Sandbox.EndReason = cmp.Or(r.Sandbox.EndReason, reason)
		r.Sandbox.EndedAt = time.Now().Round(0)
		r.endCommand(sandbox.EndedWith(r.Sandbox.EndReason, r.Sandbox.EndMessage, r.Sandbox.EndedAt))
		r.Sandbox.EndsAt, r.Deadline, r.Remaining = time.Time{}, 0, 0
		r.Sandbox.PausedAt, r.Sandbox.ImageBytes, r.Env = time.Time{}, 0, nil
	})
	m.release(e)
	m.arm(e) // no deadline: stops the timer
	e.cancel()
	m.spawn(m.collect)
}

// force is move for a sandbox on its way out, from any state: giving resources
// back does not wait for a journal that cannot be written. The next manager
// finds an older state then, and comes to the same end.
func (m *Manager) force(e *entry, to sandbox.State, message string, also func(r *Record)) {
	if e.snapshot().State == to {
		return
	}
	err := m.move(e, to, message, also)
	if err == nil {
		return
	}
	m.log.Error("the journal was not written", "sandbox", e.id, "state", to, "err", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rec.Sandbox.State = to
	also(&e.rec)
	close(e.changed)
	e.changed = make(chan struct{})
}

// giveBack has the keeper, or the reaper when the keeper is dead, remove
// everything that the sandbox holds on the host.
func (m *Manager) giveBack(ctx context.Context, e *entry) error {
	e.mu.Lock()
	k, name := e.keeper, e.rec.Keeper
	e.mu.Unlock()
	if k == nil && name == "" {
		return nil
	}
	if k != nil {
		name = k.Name()
	}
	defer m.crashDuring(CrashKillSent, time.Millisecond)()
	return m.removeFrom(ctx, k, name, e.id)
}

// removeFrom has a keeper, nil for one that is gone, or the reaper remove a
// sandbox.
func (m *Manager) removeFrom(ctx context.Context, k Keeper, name string, id sandbox.ID) error {
	if k != nil && k.Alive() {
		if _, err := k.Delete(ctx, id); err == nil || k.Alive() {
			return err
		}
	}
	return m.o.Keepers.Reap(ctx, name)
}

// follow waits for a running sandbox's end and buries it. A pause is none.
func (m *Manager) follow(e *entry) {
	e.mu.Lock()
	k, life := e.keeper, e.life
	e.mu.Unlock()
	if k == nil {
		return // paused again already
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		st, err := k.Wait(e.ctx, e.id)
		if !e.lives(life) {
			return // it rests or is dead, or the manager ends
		}
		reason, message := "", ""
		switch {
		case err == nil:
			reason, message = m.verdict(e, st)
		case !k.Alive():
			reason, message = sandbox.EndLost, "its keeper died"
		case sandbox.KindOf(err) == sandbox.NotFound:
			reason, message = sandbox.EndLost, "its keeper does not know it any more"
		}
		if reason != "" {
			ctx, cancel := context.WithTimeout(m.ctx, cleanupTime)
			defer cancel()
			if _, err := m.bury(ctx, e, reason, message); err != nil && m.ctx.Err() == nil {
				m.log.Warn("a sandbox that has ended cannot be given back yet", "sandbox", e.id, "err", err)
			}
			return
		}
		m.log.Warn("a sandbox cannot be waited for", "sandbox", e.id, "err", err)
		if !pauseFor(e.ctx, pause) {
			return
		}
	}
}

// lives waits for the end of a pause that is on its way and reports whether the
// sandbox still has the life of that number.
func (e *entry) lives(life int) bool {
	for {
		e.mu.Lock()
		state, now, changed := e.rec.Sandbox.State, e.life, e.changed
		e.mu.Unlock()
		if now != life || e.ctx.Err() != nil {
			return false
		}
		if state != sandbox.Pausing {
			return true
		}
		if awaitChange(e.ctx, changed) != nil {
			return false
		}
	}
}

// verdict tells why a sandbox ended and notes the limit that did it.
func (m *Manager) verdict(e *entry, st wire.Status) (reason, message string) {
	switch x := st.Exit; {
	case st.Fault != "":
		return sandbox.EndFault, "the guest broke the protocol: " + guest.Tidy(st.Fault)
	case x == nil:
		return sandbox.EndExited, "the guest has ended"
	case x.OOM:
		if e.snapshot().State == sandbox.Running {
			m.note(e, sandbox.Event{Kind: sandbox.EventLimit, Limit: sandbox.LimitMemory, Message: "the memory limit ended the sandbox"})
		}
		return sandbox.EndOOM, "the memory limit ended it"
	case x.Signal != 0:
		return sandbox.EndExited, "the guest was ended by signal " + strconv.Itoa(x.Signal)
	default:
		return sandbox.EndExited, "the guest has exited with " + strconv.Itoa(x.Code)
	}
}

// pauseFor waits for d and reports whether ctx still lives.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
