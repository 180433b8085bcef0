package process

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// killTime bounds the kill of a process whose time is over.
const killTime = 5 * time.Second

// Start begins a process and streams what becomes of it. A caller who goes
// away leaves it running; a deadline of the call ends it.
func (s *Service) Start(ctx context.Context, req *wire.StartRequest, stream *connect.ServerStream[wire.StartResponse]) error {
	user, err := reply.User(ctx)
	if err != nil {
		return err
	}
	start, err := plan(req, user)
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left < sandbox.MaxTimeout {
			start.Timeout = max(left, time.Millisecond)
		}
	}
	flow, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := s.g.Start(flow, start)
	if err != nil {
		return startError(req, err)
	}
	defer body.Close()
	in := bufio.NewReaderSize(body, readBuffer)
	p, err := first(in)
	if err != nil {
		return reply.Error(err)
	}
	e := &entry{
		id: start.ID, pid: uint32(p.PID), tag: start.Tag, config: req.GetProcess(),
		pty: start.PTY != nil, stdin: start.Stdin,
	}
	s.known.remember(e)
	f := &follower{s: s, e: e, cancel: cancel, body: body, in: guest.NewOutputReader(in, 0, 0)}
	err = f.run(ctx, reply.Keepalive(ctx), func(ev *wire.ProcessEvent) error {
		return stream.Send(&wire.StartResponse{Event: ev})
	})
	if ctx.Err() == context.DeadlineExceeded || f.timedOut {
		s.kill(ctx, e)
		return errDeadline()
	}
	return err
}

func errDeadline() error {
	return reply.Coded(connect.CodeDeadlineExceeded, "the time of the process is over: it has been killed")
}

// kill ends a process with all its descendants. The guest does so by itself,
// at about the same time: this makes sure of it before the caller is told.
func (s *Service) kill(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	_ = s.g.Signal(ctx, e.id, guest.Signal{Signal: 9, Tree: true}) // it may have ended
}

// plan translates a request.
func plan(req *wire.StartRequest, user string) (*guest.Start, error) {
	c := req.GetProcess()
	if c.GetCmd() == "" {
		return nil, reply.Coded(connect.CodeInvalidArgument, "no command is named")
	}
	cwd, err := workdir(c.GetCwd())
	if err != nil {
		return nil, err
	}
	out := &guest.Start{
		ID:   idPrefix + strings.ToLower(rand.Text()),
		Argv: append([]string{c.GetCmd()}, c.GetArgs()...),
		Env:  c.GetEnvs(), Cwd: cwd, User: user, Tag: req.GetTag(),
		Stdin: req.Stdin == nil || req.GetStdin(),
		// What a shell has put into the background goes on after it.
		KeepTree: true,
	}
	if req.Pty != nil {
		size, err := window(req.Pty)
		if err != nil {
			return nil, err
		}
		out.PTY = size
	}
	return out, nil
}

// workdir reads where a process begins: what is not absolute is beneath the
// user's home, which the guest knows as "~".
func workdir(cwd string) (string, error) {
	switch {
	case cwd == "" || cwd[0] == '/' || cwd == "~" || strings.HasPrefix(cwd, "~/"):
		return cwd, nil
	case cwd[0] == '~':
		return "", reply.Coded(connect.CodeInvalidArgument, "only one's own home can be named by ~")
	}
	return "~/" + cwd, nil
}

// startError says why a process has not begun: what is wrong with the request
// is an invalid argument, a missing program included.
func startError(req *wire.StartRequest, err error) error {
	e := sandbox.AsError(err)
	switch {
	case e.Kind == sandbox.Invalid && e.Field == "cwd" && strings.Contains(e.Message, "not exist"):
		return reply.Coded(connect.CodeInvalidArgument, "cwd '"+req.GetProcess().GetCwd()+"' does not exist")
	case e.Kind == sandbox.NotFound:
		return reply.Coded(connect.CodeInvalidArgument, "error starting process '"+req.GetProcess().GetCmd()+"': "+e.Error())
	}
	return reply.Error(err)
}

// maxFirst bounds the frame that describes the process.
const maxFirst = guest.MaxPayload

// first reads the frame that goes before the output.
func first(r io.Reader) (guest.Process, error) {
	var p guest.Process
	f, err := guest.ReadFrame(r)
	if err != nil {
		return p, sandbox.Errorf(sandbox.Unavailable, "the sandbox broke off").WithCause(err)
	}
	bad := sandbox.Errorf(sandbox.Internal, "the guest did not say which process it began")
	if f.Type != guest.FrameJSON || f.Len > maxFirst {
		return p, bad
	}
	b := make([]byte, f.Len)
	if _, err := io.ReadFull(r, b); err != nil {
		return p, sandbox.Errorf(sandbox.Unavailable, "the sandbox broke off").WithCause(err)
	}
	if guest.Decode(b, &p) != nil || p.Check() != nil || p.PID < 1 || p.PID > math.MaxInt32 {
		return p, bad
	}
	return p, nil
}

// Connect streams a process that another call began: its start, then what it
// writes from now on.
func (s *Service) Connect(ctx context.Context, req *wire.ConnectRequest, stream *connect.ServerStream[wire.ConnectResponse]) error {
	e, err := s.find(ctx, req.GetProcess())
	if err != nil {
		return err
	}
	p, err := s.g.Process(ctx, e.id)
	if err != nil {
		return s.after(ctx, e, err)
	}
	flow, cancel := context.WithCancel(ctx)
	defer cancel()
	from := guest.Ack{Stdout: p.Stdout.Written, Stderr: p.Stderr.Written}
	body, err := s.g.Output(flow, e.id, from.Stdout, from.Stderr)
	if err != nil {
		return s.after(ctx, e, err)
	}
	defer body.Close()
	f := &follower{s: s, e: e, cancel: cancel, body: body, in: guest.NewOutputReader(body, from.Stdout, from.Stderr), have: from}
	err = f.run(ctx, reply.Keepalive(ctx), func(ev *wire.ProcessEvent) error {
		return stream.Send(&wire.ConnectResponse{Event: ev})
	})
	if ctx.Err() == context.DeadlineExceeded {
		return reply.Coded(connect.CodeDeadlineExceeded, "the time of the call is over")
	}
	return err
}
