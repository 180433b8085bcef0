package manager

import (
	"context"
	"slices"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// failedCommand is the exit of a first command that did not start, with the
// code that a shell would give it.
func failedCommand(err *sandbox.Error) sandbox.Exit {
	code := 126
	if err.Kind == sandbox.NotFound {
		code = 127
	}
	return sandbox.Exit{Code: code, Reason: "not started: " + err.Message, At: time.Now().Round(0)}
}

// endCommand writes down how the first command ended, unless that is known.
// Records share what they point to, so it is replaced.
func (r *Record) endCommand(x sandbox.Exit) {
	if c := r.Sandbox.Command; c != nil && c.Exit == nil {
		ended := *c
		ended.Exit = &x
		r.Sandbox.Command = &ended
	}
}

// commandEnded takes note of the end of a process: if it is the first command
// its exit is journalled, and a sandbox that goes with it is killed. It may be
// called again.
func (m *Manager) commandEnded(e *entry, process string, x sandbox.Exit) {
	sb := e.snapshot()
	if sb.Command == nil || sb.Command.Process != process {
		return
	}
	x.Reason = guest.Tidy(x.Reason)
	if sb.Command.Exit == nil {
		err := m.update(e, func(r *Record) ([]sandbox.Event, error) {
			r.endCommand(x)
			return nil, nil
		})
		if err != nil {
			m.log.Error("the end of a command was not written", "sandbox", e.id, "err", err)
		}
		m.crash(CrashCommandEnded)
	}
	if sb.AutoRemove && sb.State == sandbox.Running {
		m.linger(e)
	}
}

// linger is autoRemove once a reader that the command has had of its own had the
// time to hear of its end.
func (m *Manager) linger(e *entry) {
	if d := e.record().Linger; d > 0 && !pauseFor(e.ctx, d) {
		return // its reader has killed it, or the next manager will
	}
	m.autoRemove(m.ctx, e)
}

// autoRemove kills a sandbox whose first command has ended.
func (m *Manager) autoRemove(ctx context.Context, e *entry) {
	if _, err := m.kill(ctx, e, sandbox.EndFinished); err != nil && m.ctx.Err() == nil {
		m.log.Warn("a sandbox whose command has ended could not be killed yet", "sandbox", e.id, "err", err)
	}
}

// resumeCommand goes on, after a restart, with what an earlier manager owed to
// the first command of an adopted sandbox. Its capture is taken up elsewhere.
func (m *Manager) resumeCommand(e *entry) {
	sb := e.snapshot()
	if !sb.AutoRemove || sb.Command == nil {
		return
	}
	if sb.Command.Exit != nil {
		m.spawn(func() { m.linger(e) })
		return
	}
	m.watchCommand(e)
}

// watchCommand has the end of the first command noticed although nobody reads
// its output. A capture notices it by itself.
func (m *Manager) watchCommand(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.rec.Sandbox.Command
	if c == nil || c.Exit != nil || e.watching || slices.Contains(e.rec.Captured, c.Process) {
		return
	}
	e.watching = true
	m.spawn(func() { m.awaitCommand(e, c.Process) })
}

func (m *Manager) awaitCommand(e *entry, process string) {
	for {
		p, err := m.WaitProcess(e.ctx, string(e.id), process)
		switch {
		case err == nil:
			m.commandEnded(e, process, *p.Exit)
			return
		case sandbox.KindOf(err) == sandbox.NotFound: // killed and forgotten
			m.commandEnded(e, process, forgotten())
			return
		case !pauseFor(e.ctx, longLook):
			return
		}
	}
}

// forgotten is the exit of a process that the guest does not know any more.
func forgotten() sandbox.Exit {
	return sandbox.Exit{Code: -1, Signal: 9, Reason: "killed", At: time.Now()}
}

// WaitCommand blocks until the first command of the sandbox has ended, or the
// sandbox is dead. One without a command is waited for as by Wait.
func (m *Manager) WaitCommand(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	for {
		sb, changed := e.watch()
		if sb.State == sandbox.Dead || sb.Command != nil && sb.Command.Exit != nil {
			return sb, nil
		}
		if sb.State == sandbox.Running {
			m.watchCommand(e)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sb, canceled(ctx)
		}
	}
}
