package process

import (
	"context"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// readBuffer lets small frames be read several at a time.
const readBuffer = 64 << 10

// follower sends what becomes of a process to one caller. It holds one frame:
// a caller who does not read holds back the guest, whose buffer is bounded,
// and no memory here.
type follower struct {
	s        *Service
	e        *entry
	cancel   context.CancelFunc // of the stream from the guest
	body     io.Closer
	in       *guest.OutputReader
	aud      *audience
	have     guest.Ack     // what the caller has been sent
	acking   chan struct{} // closed when the last acknowledgement is through; nil: none
	timedOut bool
}

// step is what one read of the guest's stream gave.
type step struct {
	ev  guest.Event
	err error
}

// run sends events until the process has ended, the stream breaks or the
// caller is gone.
func (f *follower) run(ctx context.Context, keepalive time.Duration, send func(*wire.ProcessEvent) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	steps, more, done := make(chan step), make(chan struct{}), make(chan struct{})
	defer f.stop(ctx)
	defer close(done)
	f.join(ctx)
	if err := send(startEvent(f.e.pid)); err != nil {
		return err
	}
	wg.Go(func() { f.read(steps, more, done) })
	silence := time.NewTimer(keepalive)
	defer silence.Stop()
	look := time.NewTicker(stallTime / 2)
	defer look.Stop()
	for {
		select {
		case st := <-steps:
			last, err := f.step(ctx, st, send)
			if err != nil || last {
				return err
			}
			if st.ev.Type == guest.FrameData {
				silence.Reset(keepalive)
			}
			f.have = f.offsets()
			f.note(ctx)
			more <- struct{}{}
		case <-look.C:
			f.note(ctx) // others may have stalled
		case <-silence.C:
			if err := send(keepaliveEvent()); err != nil {
				return err
			}
			silence.Reset(keepalive)
		case <-ctx.Done():
			return reply.Error(sandbox.Errorf(sandbox.Canceled, "the request was given up"))
		}
	}
}

// read hands on one frame at a time: its bytes are good until the next read.
func (f *follower) read(steps chan<- step, more, done <-chan struct{}) {
	for {
		ev, err := f.in.Next()
		select {
		case steps <- step{ev, err}:
		case <-done:
			return
		}
		if err != nil || ev.Exit != nil {
			return
		}
		select {
		case <-more:
		case <-done:
			return
		}
	}
}

// stop ends the stream and tells the guest how far the caller has come.
func (f *follower) stop(ctx context.Context) {
	f.cancel()
	_ = f.body.Close()
	f.leave(ctx)
}

func (f *follower) offsets() guest.Ack {
	stdout, stderr := f.in.Offsets()
	return guest.Ack{Stdout: stdout, Stderr: stderr}
}

func (f *follower) step(ctx context.Context, st step, send func(*wire.ProcessEvent) error) (last bool, err error) {
	switch {
	case st.err != nil && ctx.Err() != nil:
		return true, reply.Error(sandbox.Errorf(sandbox.Canceled, "the request was given up"))
	case st.err != nil:
		return true, reply.Error(sandbox.Errorf(sandbox.Unavailable, "the sandbox broke off").WithCause(st.err))
	}
	switch st.ev.Type {
	case guest.FrameData:
		return false, send(f.dataEvent(st.ev))
	case guest.FrameGap:
		return true, reply.Coded(connect.CodeDataLoss, strconv.FormatInt(st.ev.Lost, 10)+
			" bytes of output were lost: they were not read in time. The process goes on; connect to it again")
	case guest.FrameExit:
		f.have = f.offsets()
		f.timedOut = st.ev.Exit.TimedOut
		return true, send(endEvent(st.ev.Exit))
	}
	return false, nil
}

func startEvent(pid uint32) *wire.ProcessEvent {
	return &wire.ProcessEvent{Event: &wire.ProcessEvent_Start{Start: &wire.ProcessEvent_StartEvent{Pid: pid}}}
}

func keepaliveEvent() *wire.ProcessEvent {
	return &wire.ProcessEvent{Event: &wire.ProcessEvent_Keepalive{Keepalive: &wire.ProcessEvent_KeepAlive{}}}
}

func (f *follower) dataEvent(ev guest.Event) *wire.ProcessEvent {
	d := &wire.ProcessEvent_DataEvent{}
	switch {
	case f.e.pty:
		d.Output = &wire.ProcessEvent_DataEvent_Pty{Pty: ev.Data}
	case ev.Stream == guest.Stderr:
		d.Output = &wire.ProcessEvent_DataEvent_Stderr{Stderr: ev.Data}
	default:
		d.Output = &wire.ProcessEvent_DataEvent_Stdout{Stdout: ev.Data}
	}
	return &wire.ProcessEvent{Event: &wire.ProcessEvent_Data{Data: d}}
}

// endEvent says how a process ended, in the words that clients compare.
func endEvent(x *sandbox.Exit) *wire.ProcessEvent {
	end := &wire.ProcessEvent_EndEvent{ExitCode: int32(x.Code), Exited: true, Status: "exit status " + strconv.Itoa(x.Code)}
	if x.Signal != 0 {
		end.ExitCode, end.Exited, end.Status = -1, false, "signal: "+syscall.Signal(x.Signal).String()
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return &wire.ProcessEvent{Event: &wire.ProcessEvent_End{End: end}}
}
