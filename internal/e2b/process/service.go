// Package process serves process.Process of the E2B wire for one sandbox. It
// is a translation: processes live in the guest, which numbers their output by
// byte, and this package keeps no more than what each was asked for.
package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
	"github.com/belljar-sh/belljar/internal/gen/e2b/process/processconnect"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Guest reaches the processes of one sandbox. A sandbox that has ended is
// [sandbox.Unavailable] with the field "sandbox". Implementations are safe for concurrent use and bound
// what a guest may answer.
type Guest interface {
	// Start begins a process and returns its frames: JSON with the process, then
	// its output from the beginning. The caller closes them.
	Start(ctx context.Context, s *guest.Start) (io.ReadCloser, error)
	// Output returns the frames of a process from the given offsets on.
	Output(ctx context.Context, id string, stdout, stderr int64) (io.ReadCloser, error)
	Processes(ctx context.Context) ([]guest.Process, error)
	Process(ctx context.Context, id string) (guest.Process, error)
	Ack(ctx context.Context, id string, a guest.Ack) error
	Resize(ctx context.Context, id string, size guest.PTYSize) error
	Signal(ctx context.Context, id string, s guest.Signal) error
	// Input appends to what the process reads, and ends it if eof is set.
	Input(ctx context.Context, id string, data []byte, eof bool) error
}

// Service is the service for one sandbox; use [New]. It is safe for concurrent
// use.
type Service struct {
	g     Guest
	known table

	mu        sync.Mutex
	audiences map[string]*audience // by the guest's ID of a process
}

// New returns the service over a guest.
func New(g Guest) *Service {
	return &Service{g: g, known: table{byPID: map[uint32]*entry{}}, audiences: map[string]*audience{}}
}

// Handler returns the path beneath which the service is mounted, and it.
func (s *Service) Handler(opts ...connect.HandlerOption) (string, http.Handler) {
	return processconnect.NewProcessHandler(s, append(opts, jsonCodecs())...)
}

// List tells the processes that were begun through Start and still run.
func (s *Service) List(ctx context.Context, _ *wire.ListRequest) (*wire.ListResponse, error) {
	live, err := s.refresh(ctx)
	if err != nil {
		return nil, reply.Error(err)
	}
	out := &wire.ListResponse{}
	for _, e := range live {
		if e.ended {
			continue
		}
		info := &wire.ProcessInfo{Config: e.config, Pid: e.pid}
		if e.tag != "" {
			info.Tag = &e.tag
		}
		out.Processes = append(out.Processes, info)
	}
	return out, nil
}

// Update changes the size of a terminal.
func (s *Service) Update(ctx context.Context, req *wire.UpdateRequest) (*wire.UpdateResponse, error) {
	e, err := s.find(ctx, req.GetProcess())
	if err != nil {
		return nil, err
	}
	if req.Pty == nil {
		return &wire.UpdateResponse{}, nil
	}
	if !e.pty {
		return nil, reply.Coded(connect.CodeFailedPrecondition, "the process has no terminal")
	}
	size, err := window(req.Pty)
	if err != nil {
		return nil, err
	}
	return &wire.UpdateResponse{}, s.after(ctx, e, s.g.Resize(ctx, e.id, *size))
}

// SendInput writes to the standard input or the terminal of a process.
func (s *Service) SendInput(ctx context.Context, req *wire.SendInputRequest) (*wire.SendInputResponse, error) {
	e, err := s.find(ctx, req.GetProcess())
	if err != nil {
		return nil, err
	}
	return &wire.SendInputResponse{}, s.input(ctx, e, req.GetInput())
}

// StreamInput is SendInput for many pieces, in order.
func (s *Service) StreamInput(ctx context.Context, in *connect.ClientStream[wire.StreamInputRequest]) (*wire.StreamInputResponse, error) {
	var e *entry
	for in.Receive() {
		var err error
		switch ev := in.Msg().GetEvent().(type) {
		case *wire.StreamInputRequest_Start:
			e, err = s.find(ctx, ev.Start.GetProcess())
		case *wire.StreamInputRequest_Data:
			if e == nil {
				err = reply.Coded(connect.CodeInvalidArgument, "the first message names the process")
				break
			}
			err = s.input(ctx, e, ev.Data.GetInput())
		}
		if err != nil {
			return nil, err
		}
	}
	return &wire.StreamInputResponse{}, reply.Error(in.Err())
}

func (s *Service) input(ctx context.Context, e *entry, in *wire.ProcessInput) error {
	var data []byte
	switch in := in.GetInput().(type) {
	case *wire.ProcessInput_Stdin:
		if e.pty {
			return reply.Coded(connect.CodeInternal, "the process has a terminal and no standard input of its own")
		}
		data = in.Stdin
	case *wire.ProcessInput_Pty:
		if !e.pty {
			return reply.Coded(connect.CodeInternal, "the process has no terminal")
		}
		data = in.Pty
	default:
		return reply.Coded(connect.CodeInvalidArgument, "there is no input")
	}
	if !e.stdin && !e.pty {
		return errNoStdin()
	}
	if len(data) == 0 {
		return nil
	}
	return s.after(ctx, e, s.g.Input(ctx, e.id, data, false))
}

func errNoStdin() error {
	return reply.Coded(connect.CodeInternal, "the process was begun without standard input")
}

// SendSignal sends SIGTERM or SIGKILL to a process and its group.
func (s *Service) SendSignal(ctx context.Context, req *wire.SendSignalRequest) (*wire.SendSignalResponse, error) {
	switch req.GetSignal() {
	case wire.Signal_SIGNAL_SIGTERM, wire.Signal_SIGNAL_SIGKILL:
	default:
		return nil, reply.Coded(connect.CodeUnimplemented, "only SIGTERM and SIGKILL can be sent, not signal "+strconv.Itoa(int(req.GetSignal())))
	}
	e, err := s.find(ctx, req.GetProcess())
	if err != nil {
		return nil, err
	}
	err = s.g.Signal(ctx, e.id, guest.Signal{Signal: int(req.GetSignal())})
	return &wire.SendSignalResponse{}, s.after(ctx, e, err)
}

// CloseStdin ends the standard input of a process; twice is no error.
func (s *Service) CloseStdin(ctx context.Context, req *wire.CloseStdinRequest) (*wire.CloseStdinResponse, error) {
	e, err := s.find(ctx, req.GetProcess())
	switch {
	case err != nil:
		return nil, err
	case e.pty:
		return nil, reply.Coded(connect.CodeInternal, "the standard input of a terminal is not closed; send the character that ends it, 0x04")
	case !e.stdin:
		return nil, errNoStdin()
	}
	return &wire.CloseStdinResponse{}, s.after(ctx, e, s.g.Input(ctx, e.id, nil, true))
}

// after says what became of a request about e: a process that has ended is not
// found on this wire.
func (s *Service) after(ctx context.Context, e *entry, err error) error {
	switch sandbox.KindOf(err) {
	case "":
		return nil
	case sandbox.NotFound:
		s.known.forget(e)
		return notFound(strconv.Itoa(int(e.pid)))
	case sandbox.Conflict:
		if p, perr := s.g.Process(ctx, e.id); perr == nil && p.Exit != nil || sandbox.KindOf(perr) == sandbox.NotFound {
			return notFound(strconv.Itoa(int(e.pid)))
		}
	}
	return reply.Error(err)
}

func notFound(what string) error {
	return connect.NewError(connect.CodeNotFound, errors.New("no process is "+what+", or it has ended"))
}

// maxWindow bounds the sides of a terminal, whose kernel counts in 16 bits.
const maxWindow = 1<<16 - 1

// window reads the size of a terminal; one without a size gets the usual.
func window(p *wire.PTY) (*guest.PTYSize, error) {
	cols, rows := p.GetSize().GetCols(), p.GetSize().GetRows()
	if cols > maxWindow || rows > maxWindow {
		return nil, reply.Coded(connect.CodeInvalidArgument, "a terminal has at most 65535 columns and rows")
	}
	if cols == 0 {
		cols = 80
	}
	if rows == 0 {
		rows = 24
	}
	return &guest.PTYSize{Cols: uint16(cols), Rows: uint16(rows)}, nil
}
