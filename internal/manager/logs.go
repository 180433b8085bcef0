package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager/outlog"
	"github.com/belljar-sh/belljar/sandbox"
)

// LogQuery says which kept output is asked for.
type LogQuery struct {
	Process string         // only this one; empty: all, in the order of their start
	From    string         // of all, begin with this one; empty: the first
	Offsets outlog.Offsets // begin here in the first process that is sent
	Follow  bool           // go on while a process runs
}

// Logs writes what was kept of processes to w as frames: before each a
// [guest.LogMark] that names it, and a last one when nothing is missing.
func (m *Manager) Logs(ctx context.Context, ref string, q LogQuery, w io.Writer, flush func() error) error {
	e, err := m.find(ref)
	if err != nil {
		return err
	}
	next, err := e.logged(q)
	if err != nil {
		return err
	}
	for i := next; ; i++ {
		e.mu.Lock()
		ids := e.rec.Captured // grows while we follow
		e.mu.Unlock()
		if i >= len(ids) || q.Process != "" && i > next {
			break
		}
		if err := mark(w, guest.LogMark{Process: ids[i]}); err != nil {
			return err
		}
		if err := m.copyLog(ctx, e, ids[i], q, w, flush); err != nil {
			return err
		}
		q.Offsets = outlog.Offsets{}
	}
	if err := mark(w, guest.LogMark{End: true}); err != nil {
		return err
	}
	return flush()
}

// logged returns the place of the first process that a query means among those
// that are captured.
func (e *entry) logged(q LogQuery) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for field, id := range map[string]string{"process": q.Process, "from": q.From} {
		if id == "" {
			continue
		}
		if i := slices.Index(e.rec.Captured, id); i >= 0 {
			return i, nil
		}
		return 0, sandbox.Errorf(sandbox.NotFound, "no output of this process is kept").WithField(field, id).
			WithHint("output is kept of processes that were started detached")
	}
	return 0, nil
}

func mark(w io.Writer, m guest.LogMark) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b := make([]byte, guest.HeaderLen, guest.HeaderLen+len(payload))
	guest.Frame{Type: guest.FrameJSON, Len: uint32(len(payload))}.Put(b)
	_, err = w.Write(append(b, payload...))
	return err
}

func (m *Manager) copyLog(ctx context.Context, e *entry, id string, q LogQuery, w io.Writer, flush func() error) error {
	e.mu.Lock()
	c := e.captures[id]
	e.mu.Unlock()
	if c != nil {
		if err := c.log.CopyTo(ctx, w, q.Offsets, q.Follow, flush); err != nil {
			return err
		}
		if q.Follow && c.log.Exit() == nil {
			return sandbox.Errorf(sandbox.Unavailable, "the output is not kept any more before its end").WithField("process", id)
		}
		return nil
	}
	dir, err := m.logDir(e.id, id)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	log, err := outlog.Open(dir)
	if err != nil {
		return err
	}
	defer log.Close()
	return log.CopyTo(ctx, w, q.Offsets, false, flush)
}
