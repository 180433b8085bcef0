package manager

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxProcesses bounds the list that a guest may answer with.
const maxProcesses = 100_000

func procPath(id string) string { return "/processes/" + id }

// StartProcess begins a process in a running sandbox. Equal requests with one
// ID begin one process.
func (m *Manager) StartProcess(ctx context.Context, ref string, s Start) (guest.Process, error) {
	var p guest.Process
	if err := s.check(); err != nil {
		return p, err
	}
	if s.Capture && m.o.LogDir == "" {
		return p, errNoCapture()
	}
	g, err := m.again(ctx, ref, func(g *Guest) error {
		return g.JSON(ctx, http.MethodPost, "/processes", nil, s.Start, &p)
	})
	if err != nil {
		return p, err
	}
	if p.ID != s.ID {
		return p, badGuest("another process than was asked for")
	}
	m.lease(g.e, s.ID, s.Lease)
	if s.Capture {
		return p, m.startCapture(g.e, p)
	}
	return p, nil
}

// StartOutput is StartProcess and [Manager.Output] in one: a JSON frame with
// the process goes before its output.
func (m *Manager) StartOutput(ctx context.Context, ref string, s Start) (io.ReadCloser, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Capture {
		return nil, sandbox.Errorf(sandbox.Invalid, "output is either kept for logs or streamed").WithField("capture", "true")
	}
	var resp *http.Response
	g, err := m.again(ctx, ref, func(g *Guest) error {
		body, err := guest.JSONBody(s.Start)
		if err != nil {
			return err
		}
		resp, err = g.Do(ctx, Request{
			Method: http.MethodPost, Path: "/processes", Query: url.Values{"output": {"1"}}, Direct: true,
			Body: body.Reader, Size: body.Size, Header: body.Header,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	m.lease(g.e, s.ID, s.Lease)
	b := m.follower(g, s.ID, resp.Body)
	b.scan.first = func(payload []byte) error {
		var p guest.Process
		if err := decodeOne(payload, &p); err != nil {
			return err
		}
		if p.ID != s.ID {
			return badGuest("another process than was asked for")
		}
		return nil
	}
	return b, nil
}

// Processes lists the processes of a sandbox that the guest remembers.
func (m *Manager) Processes(ctx context.Context, ref string) ([]guest.Process, error) {
	var list []guest.Process
	_, err := m.again(ctx, ref, func(g *Guest) (err error) {
		list, err = List[guest.Process](ctx, g, "/processes", nil, maxProcesses)
		return err
	})
	return list, err
}

// Process returns one process.
func (m *Manager) Process(ctx context.Context, ref, id string) (guest.Process, error) {
	return m.process(ctx, id, func() (*Guest, error) { return m.Guest(ctx, ref) })
}

// process is Process through the guest that reach returns.
func (m *Manager) process(ctx context.Context, id string, reach func() (*Guest, error)) (guest.Process, error) {
	var p guest.Process
	if err := CheckProcessID(id); err != nil {
		return p, err
	}
	g, err := reach()
	if err != nil {
		return p, err
	}
	err = g.JSON(ctx, http.MethodGet, procPath(id), nil, nil, &p)
	if err == nil && p.ID != id {
		err = badGuest("another process than was asked for")
	}
	return p, err
}

// The pauses between two looks at a process that is waited for.
const (
	firstLook = 5 * time.Millisecond
	longLook  = 500 * time.Millisecond
)

// watched is Process for those who look on. A pause that came in between is no
// error.
func (m *Manager) watched(ctx context.Context, ref, id string) (p guest.Process, err error) {
	for {
		var g *Guest
		p, err = m.process(ctx, id, func() (_ *Guest, err error) {
			g, err = m.onlooker(ctx, ref)
			return g, err
		})
		if err == nil || g == nil || !g.outlived() {
			return p, err
		}
	}
}

// WaitProcess returns a process when it has exited. Its output is left alone.
// With a paused sandbox it waits for the resume. Of one that the guest has forgotten, but whose output was kept, it knows the
// exit only.
func (m *Manager) WaitProcess(ctx context.Context, ref, id string) (guest.Process, error) {
	for pause := firstLook; ; pause = min(2*pause, longLook) {
		p, err := m.watched(ctx, ref, id)
		if err != nil {
			if x := m.keptExit(ref, id); x != nil {
				return guest.Process{ID: id, Argv: []string{}, Exit: x}, nil
			}
		}
		if err != nil || p.Exit != nil {
			return p, err
		}
		if !pauseFor(ctx, pause) {
			return p, canceled(ctx)
		}
	}
}

// Ack tells the guest how much output has been taken for good.
func (m *Manager) Ack(ctx context.Context, ref, id string, a guest.Ack) error {
	if a.Stdout < 0 || a.Stderr < 0 {
		return sandbox.Errorf(sandbox.Invalid, "an offset is not negative").WithField("ack", strconv.FormatInt(min(a.Stdout, a.Stderr), 10))
	}
	return m.postTo(ctx, id, "/ack", a, func() (*Guest, error) { return m.onlooker(ctx, ref) })
}

// Resize sets the size of a terminal.
func (m *Manager) Resize(ctx context.Context, ref, id string, size guest.PTYSize) error {
	if size.Cols == 0 || size.Rows == 0 {
		return sandbox.Errorf(sandbox.Invalid, "a terminal has at least one column and one row").WithField("size",
			strconv.Itoa(int(size.Cols))+"x"+strconv.Itoa(int(size.Rows)))
	}
	return m.postTo(ctx, id, "/resize", size, func() (*Guest, error) { return m.onlooker(ctx, ref) })
}

// maxSignal is the highest signal of Linux.
const maxSignal = 64

// Signal sends a signal to a process.
func (m *Manager) Signal(ctx context.Context, ref, id string, s guest.Signal) error {
	if s.Signal < 1 || s.Signal > maxSignal {
		return sandbox.Errorf(sandbox.Invalid, "a signal lies between 1 and %d", maxSignal).WithField("signal", strconv.Itoa(s.Signal))
	}
	return m.post(ctx, ref, id, "/signal", s)
}

func (m *Manager) post(ctx context.Context, ref, id, what string, body any) error {
	return m.postTo(ctx, id, what, body, func() (*Guest, error) { return m.Guest(ctx, ref) })
}

func (m *Manager) postTo(ctx context.Context, id, what string, body any, reach func() (*Guest, error)) error {
	if err := CheckProcessID(id); err != nil {
		return err
	}
	g, err := reach()
	if err != nil {
		return err
	}
	return g.JSON(ctx, http.MethodPost, procPath(id)+what, nil, body, nil)
}

// KillProcess kills a process with all its descendants and forgets it. One
// that is not there is no error. In the background it returns at once: for one
// that has exited and is only to be forgotten.
func (m *Manager) KillProcess(ctx context.Context, ref, id string, background bool) error {
	if err := CheckProcessID(id); err != nil {
		return err
	}
	g, err := m.Guest(ctx, ref)
	if err != nil {
		return err
	}
	if background {
		m.spawn(func() {
			ctx, cancel := context.WithTimeout(g.e.ctx, cleanupTime)
			defer cancel()
			if err := g.JSON(ctx, http.MethodDelete, procPath(id), nil, nil, nil); err != nil {
				m.log.Debug("a process was not forgotten", "sandbox", g.e.id, "process", id, "err", err)
			}
		})
		return nil
	}
	err = g.JSON(ctx, http.MethodDelete, procPath(id), nil, nil, nil)
	if sandbox.KindOf(err) == sandbox.NotFound {
		return nil
	}
	return err
}

// FromHere is the offset of input that comes after what has been taken.
const FromHere = -1

// Stdin passes input on: body holds the bytes from offset on. It returns how
// many bytes the process has had in all.
func (m *Manager) Stdin(ctx context.Context, ref, id string, offset int64, body io.Reader, size int64, eof bool) (guest.StdinReply, error) {
	var out guest.StdinReply
	if err := CheckProcessID(id); err != nil {
		return out, err
	}
	if offset < 0 && offset != FromHere {
		return out, sandbox.Errorf(sandbox.Invalid, "an offset is not negative").WithField("offset", strconv.FormatInt(offset, 10))
	}
	g, err := m.Guest(ctx, ref)
	if err != nil {
		return out, err
	}
	q := Request{
		Method: http.MethodPost, Path: procPath(id) + "/stdin",
		Query: url.Values{},
		Body:  body, Size: size,
		Header: http.Header{"Content-Type": {"application/octet-stream"}},
	}
	if offset != FromHere {
		q.Query.Set("offset", strconv.FormatInt(offset, 10))
	}
	if eof {
		q.Header.Set(guest.HeaderEOF, "1")
	}
	resp, err := g.Do(ctx, q)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, g.decode(ctx, resp, &out)
}

// Output streams a process's output as frames of guest/wire from the given
// offsets on. The frames are the guest's own bytes, checked on their way. The
// stream ends after the exit frame; when it breaks off before, as it does at a
// pause, Read returns an error. Of a paused sandbox it begins with the resume.
func (m *Manager) Output(ctx context.Context, ref, id string, stdout, stderr int64) (io.ReadCloser, error) {
	if err := CheckProcessID(id); err != nil {
		return nil, err
	}
	if stdout < 0 || stderr < 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "an offset is not negative").WithField("offset", strconv.FormatInt(min(stdout, stderr), 10))
	}
	g, err := m.onlooker(ctx, ref)
	if err != nil {
		return nil, err
	}
	return m.output(ctx, g, id, stdout, stderr)
}

func (m *Manager) output(ctx context.Context, g *Guest, id string, stdout, stderr int64) (*outputBody, error) {
	resp, err := g.Do(ctx, Request{
		Method: http.MethodGet, Path: procPath(id) + "/output", Direct: true,
		Query: url.Values{"stdout": {strconv.FormatInt(stdout, 10)}, "stderr": {strconv.FormatInt(stderr, 10)}},
	})
	if err != nil {
		return nil, err
	}
	return m.follower(g, id, resp.Body), nil
}

// follower notes what goes by in a stream of output.
func (m *Manager) follower(g *Guest, id string, body io.ReadCloser) *outputBody {
	b := &outputBody{body: body}
	b.scan.gap = func(stream guest.Stream, lost int64) { m.outputLost(g.e, id, lost) }
	b.scan.exit = func(x sandbox.Exit) { m.exited(g.e, id, x) }
	m.busy(g.e, 1)
	b.closed = func() {
		m.busy(g.e, -1)
		if !b.scan.ended {
			m.watchLease(g.e, id)
		}
	}
	return b
}

// exited notes the exit of a process, once, and the limits that were hit.
func (m *Manager) exited(e *entry, id string, x sandbox.Exit) {
	if !e.firstExit(id, x.At) {
		return
	}
	m.spawn(func() {
		switch {
		case x.TimedOut:
			m.note(e, sandbox.Event{Kind: sandbox.EventLimit, Limit: sandbox.LimitTime, Process: id, Message: "the process's timeout is over"})
		case x.OOM:
			m.note(e, sandbox.Event{Kind: sandbox.EventLimit, Limit: sandbox.LimitMemory, Process: id, Message: "the memory limit ended the process"})
		}
		if x.Reason == sandbox.ReasonOrphaned {
			m.note(e, sandbox.Event{Kind: sandbox.EventOrphan, Process: id, Message: "its client did not come back: it was killed with all that it had started"})
		}
		m.note(e, sandbox.Event{Kind: sandbox.EventExit, Process: id, Message: sentence(x)})
		if !e.captured(id) {
			m.commandEnded(e, id, x)
		}
	})
	m.unlease(e, id)
	m.lookSoon(e)
}

func sentence(x sandbox.Exit) string {
	if x.Signal != 0 {
		return "ended by signal " + strconv.Itoa(x.Signal)
	}
	return "exited with " + strconv.Itoa(x.Code)
}
