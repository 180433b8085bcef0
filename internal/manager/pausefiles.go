package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// rested makes the sandbox Paused. With files alone all its processes have ended,
// which their logs and events tell; that is all written again when it is asked
// for again, as after a crash.
func (m *Manager) rested(e *entry, f *image.Manifest) error {
	files := f.Kind == sandbox.KindFiles
	x := sandbox.Exit{Code: -1, Signal: 9, At: f.SavedAt, Reason: sandbox.ReasonPaused}
	var ended []string
	if files {
		var err error
		if ended, err = m.endLogs(e, x); err != nil {
			return err
		}
	}
	return m.update(e, func(r *Record) ([]sandbox.Event, error) {
		next, err := r.Sandbox.State.To(sandbox.Paused)
		if err != nil {
			return nil, err
		}
		r.Sandbox.State = next
		r.Keeper, r.Instance = "", ""
		r.Sandbox.PausedAt, r.Sandbox.PausedKind, r.Sandbox.ImageBytes = f.SavedAt, f.Kind, f.Bytes()
		if !files {
			return []sandbox.Event{{Kind: sandbox.EventState, State: next, Message: "memory and files are on disk"}}, nil
		}
		events := []sandbox.Event{{Kind: sandbox.EventState, State: next, Message: "files are on disk, and memory is given up"}}
		if c := r.Sandbox.Command; c != nil && c.Exit == nil {
			r.endCommand(x)
			if !slices.Contains(ended, c.Process) {
				ended = append(ended, c.Process)
			}
		}
		for _, id := range ended {
			events = append(events, sandbox.Event{Kind: sandbox.EventExit, Process: id, Message: sandbox.ReasonPaused})
		}
		return events, nil
	})
}

// endLogs writes the end of every process whose output is kept and which has not
// ended before, and returns which those are.
func (m *Manager) endLogs(e *entry, x sandbox.Exit) (ended []string, err error) {
	for _, id := range e.record().Captured {
		was, err := m.endLog(e, id, x)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Internal, "the end of a log cannot be written: %w", err).WithField("process", id)
		}
		if was.At.Equal(x.At) && was.Reason == x.Reason {
			ended = append(ended, id)
		}
	}
	return ended, nil
}

// endLog ends one log and returns how its process ended, which may have been
// before.
func (m *Manager) endLog(e *entry, id string, x sandbox.Exit) (sandbox.Exit, error) {
	e.mu.Lock()
	c := e.captures[id]
	e.mu.Unlock()
	if c != nil {
		if err := c.log.End(x); err == nil {
			return *c.log.Exit(), nil
		}
	}
	log, err := m.openLog(e.id, id) // nobody has it open, or not any more
	if err != nil {
		return x, err
	}
	err = log.End(x)
	was := log.Exit()
	if err = errors.Join(err, log.Close()); err == nil && was == nil {
		err = fmt.Errorf("it has no end")
	}
	if err != nil {
		return x, err
	}
	return *was, nil
}

// lookAtCommand asks the guest how the first command ended, if it has: after a
// pause without memory nobody can.
func (m *Manager) lookAtCommand(ctx context.Context, e *entry) {
	sb := e.snapshot()
	if sb.State != sandbox.Running || sb.Command == nil || sb.Command.Exit != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	p, err := m.process(ctx, sb.Command.Process, func() (*Guest, error) { return m.Guest(ctx, string(e.id)) })
	switch {
	case err == nil && p.Exit != nil:
		m.commandEnded(e, p.ID, *p.Exit)
	case sandbox.KindOf(err) == sandbox.NotFound:
		m.commandEnded(e, sb.Command.Process, forgotten())
	}
}
