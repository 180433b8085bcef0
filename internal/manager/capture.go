package manager

import (
	"bufio"
	"encoding/binary"
	"io"
	"path/filepath"
	"slices"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager/outlog"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxCaptured bounds the captured processes of one sandbox.
const maxCaptured = 256

// capture keeps the output of one process for logs.
type capture struct {
	id   string
	log  *outlog.Log
	done chan struct{} // closed when nothing more is written
}

func errNoCapture() error {
	return sandbox.Errorf(sandbox.Unsupported, "output is not kept here").WithField("capture", "true").
		WithHint("attach to the process, or use the daemon")
}

// logDir returns where the output of a process is kept. The ID is checked
// here, next to the path that it becomes a part of.
func (m *Manager) logDir(id sandbox.ID, process string) (string, error) {
	if err := CheckProcessID(process); err != nil {
		return "", err
	}
	return filepath.Join(m.o.LogDir, string(id), process), nil
}

func (m *Manager) openLog(id sandbox.ID, process string) (*outlog.Log, error) {
	dir, err := m.logDir(id, process)
	if err != nil {
		return nil, err
	}
	return outlog.Open(dir)
}

// startCapture journals that a process is captured and begins.
func (m *Manager) startCapture(e *entry, p guest.Process) error {
	err := m.update(e, func(r *Record) ([]sandbox.Event, error) {
		switch {
		case slices.Contains(r.Captured, p.ID):
		case len(r.Captured) >= maxCaptured:
			return nil, sandbox.Errorf(sandbox.ResourceExhausted, "the output of %d processes of this sandbox is kept already", maxCaptured)
		default:
			r.Captured = append(slices.Clone(r.Captured), p.ID)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	m.capture(e, p)
	return nil
}

// recapture goes on with a capture of an earlier manager.
func (m *Manager) recapture(e *entry, id string) { m.capture(e, guest.Process{ID: id}) }

// capture has the output of a process written to its log until it ends.
func (m *Manager) capture(e *entry, p guest.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.captures[p.ID] != nil {
		return
	}
	log, err := m.openLog(e.id, p.ID)
	if err != nil {
		m.log.Error("output cannot be kept", "sandbox", e.id, "process", p.ID, "err", err)
		return
	}
	c := &capture{id: p.ID, log: log, done: make(chan struct{})}
	e.captures[p.ID] = c
	if !m.enter() {
		close(c.done)
		log.Close()
		return
	}
	go func() {
		defer m.wg.Done()
		m.runCapture(e, c)
		exit := log.Exit()
		log.Close()
		close(c.done)
		if exit != nil { // all that it wrote is on disk
			m.commandEnded(e, c.id, *exit)
		}
	}()
}

// keptExit returns the exit of the first command, or of a process whose output is
// kept; nil when there is none yet.
func (m *Manager) keptExit(ref, process string) *sandbox.Exit {
	e, err := m.find(ref)
	if err != nil {
		return nil
	}
	if c := e.snapshot().Command; c != nil && c.Process == process && c.Exit != nil {
		return c.Exit
	}
	if !e.captured(process) {
		return nil
	}
	e.mu.Lock()
	c := e.captures[process]
	e.mu.Unlock()
	if c != nil {
		return c.log.Exit()
	}
	log, err := m.openLog(e.id, process)
	if err != nil {
		return nil
	}
	defer log.Close()
	return log.Exit()
}

// captured reports whether the output of a process is kept.
func (e *entry) captured(process string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.rec.Captured, process)
}

// runCapture reads until the process or the sandbox has ended, or the manager
// ends.
func (m *Manager) runCapture(e *entry, c *capture) {
	for pause := firstLook; ; pause = min(2*pause, longLook) {
		_, _, ended := c.log.Next()
		if ended {
			return
		}
		err := m.captureOnce(e, c)
		if err == nil {
			return
		}
		if sandbox.KindOf(err) == sandbox.NotFound { // killed and forgotten
			c.end(m, forgotten())
			return
		}
		if !pauseFor(e.ctx, pause) {
			if sb := e.snapshot(); sb.State == sandbox.Dead {
				c.end(m, sandbox.EndedWith(sb.EndReason, sb.EndMessage, sb.EndedAt))
			}
			return
		}
	}
}

func (c *capture) end(m *Manager, x sandbox.Exit) {
	if err := c.log.End(x); err != nil {
		m.log.Error("the end of a log cannot be written", "process", c.id, "err", err)
	}
}

// captureOnce reads one connection to the exit.
func (m *Manager) captureOnce(e *entry, c *capture) error {
	g, err := m.onlooker(e.ctx, string(e.id))
	if err != nil {
		return err
	}
	stdout, stderr, _ := c.log.Next()
	body, err := m.output(e.ctx, g, c.id, stdout, stderr)
	if err != nil {
		return err
	}
	defer body.Close()
	r := bufio.NewReaderSize(body, 128<<10)
	buf := make([]byte, guest.MaxPayload)
	var acked guest.Ack
	for {
		f, err := guest.ReadFrame(r)
		if err != nil {
			return err
		}
		b := buf[:f.Len]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		ended, err := c.take(f, b)
		if err != nil || ended {
			return err
		}
		if r.Buffered() >= guest.HeaderLen {
			continue
		}
		var now guest.Ack
		if now.Stdout, now.Stderr, _ = c.log.Next(); now != acked {
			acked = now
			if err := m.Ack(e.ctx, string(e.id), c.id, now); err != nil {
				return err
			}
		}
	}
}

// take writes one frame.
func (c *capture) take(f guest.Frame, b []byte) (ended bool, err error) {
	switch f.Type {
	case guest.FrameData:
		err = c.log.Write(f.Stream, int64(f.Offset), b)
	case guest.FrameGap:
		// The next data shows it; nothing may come, so it is written down now.
		err = c.log.Jump(f.Stream, int64(f.Offset)+int64(binary.BigEndian.Uint64(b)))
	case guest.FrameExit:
		x, err := guest.DecodeExit(b)
		if err != nil {
			return false, err
		}
		return true, c.log.End(x)
	}
	if err != nil {
		err = sandbox.Errorf(sandbox.ResourceExhausted, "the log cannot be written: %w", err)
	}
	return false, err
}
