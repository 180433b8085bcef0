package files

import (
	"context"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// watch is one watched directory.
type watch struct {
	s       *Service
	user    string
	root    string // as the guest names it
	entries bool   // events come with what they are about
	body    io.ReadCloser
	in      *guest.WatchReader
	cancel  context.CancelFunc
}

// wanted is what both kinds of watch ask for.
type wanted interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// begin watches from its return on; ctx bounds the watch.
func (s *Service) begin(ctx context.Context, user string, req wanted) (*watch, error) {
	place := s.place(req.GetPath())
	e, err := s.g.Stat(ctx, place, user)
	if err != nil {
		return nil, failure(err)
	}
	flow, cancel := context.WithCancel(ctx)
	body, err := s.g.Watch(flow, place, user, req.GetRecursive(), !req.GetAllowNetworkMounts())
	if err != nil {
		cancel()
		return nil, failure(err)
	}
	return &watch{
		s: s, user: user, root: e.Path, entries: req.GetIncludeEntry(),
		body: body, in: guest.NewWatchReader(body), cancel: cancel,
	}, nil
}

func (w *watch) close() {
	w.cancel()
	_ = w.body.Close()
}

var eventTypes = map[string]wire.EventType{
	"create": wire.EventType_EVENT_TYPE_CREATE, "write": wire.EventType_EVENT_TYPE_WRITE,
	"remove": wire.EventType_EVENT_TYPE_REMOVE, "rename": wire.EventType_EVENT_TYPE_RENAME,
	"chmod": wire.EventType_EVENT_TYPE_CHMOD,
}

// next returns the next event as the wire has it. Events that were lost are an
// error: nothing on this wire could tell of them.
func (w *watch) next(ctx context.Context) (*wire.FilesystemEvent, error) {
	ev, err := w.in.Next()
	switch {
	case err == io.EOF:
		return nil, reply.Coded(connect.CodeAborted, "the watched directory is gone")
	case err != nil:
		return nil, reply.Error(sandbox.Errorf(sandbox.Unavailable, "the sandbox broke off").WithCause(err))
	}
	kind, ok := eventTypes[ev.Op]
	if !ok {
		return nil, reply.Coded(connect.CodeDataLoss, "events were lost: too much changes at once, or nobody took them in time")
	}
	out := &wire.FilesystemEvent{Name: w.relative(ev.Path), Type: kind}
	if w.entries && kind != wire.EventType_EVENT_TYPE_REMOVE && kind != wire.EventType_EVENT_TYPE_RENAME {
		p := ev.Path
		if len(ev.RawPath) > 0 {
			p = string(ev.RawPath)
		}
		if e, err := w.s.g.Stat(ctx, p, w.user); err == nil { // it may be gone again
			out.Entry = info(&e)
		}
	}
	return out, nil
}

// relative is a path beneath the watched directory, as clients see it.
func (w *watch) relative(p string) string {
	p = path.Clean(p)
	if p == w.root {
		return "."
	}
	return valid(strings.TrimPrefix(strings.TrimPrefix(p, w.root), "/"))
}

// WatchDir streams what changes in a directory.
func (s *Service) WatchDir(ctx context.Context, req *wire.WatchDirRequest, stream *connect.ServerStream[wire.WatchDirResponse]) error {
	user, err := reply.User(ctx)
	if err != nil {
		return err
	}
	w, err := s.begin(ctx, user, req)
	if err != nil {
		return err
	}
	err = w.stream(ctx, reply.Keepalive(ctx), stream.Send)
	if ctx.Err() == context.DeadlineExceeded {
		return reply.Coded(connect.CodeDeadlineExceeded, "the time of the call is over")
	}
	return err
}

// change is what one read of the guest's stream gave.
type change struct {
	ev  *wire.FilesystemEvent
	err error
}

// stream sends events until the watch ends or the caller is gone. It holds one
// event; the guest's queue is bounded and counts what it drops.
func (w *watch) stream(ctx context.Context, keepalive time.Duration, send func(*wire.WatchDirResponse) error) error {
	changes, done := make(chan change), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.close()
	defer close(done)
	if err := send(&wire.WatchDirResponse{Event: &wire.WatchDirResponse_Start{Start: &wire.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	wg.Go(func() {
		for {
			ev, err := w.next(ctx)
			select {
			case changes <- change{ev, err}:
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	})
	silence := time.NewTimer(keepalive)
	defer silence.Stop()
	for {
		out := &wire.WatchDirResponse{}
		select {
		case c := <-changes:
			if c.err != nil {
				return c.err
			}
			out.Event = &wire.WatchDirResponse_Filesystem{Filesystem: c.ev}
		case <-silence.C:
			out.Event = &wire.WatchDirResponse_Keepalive{Keepalive: &wire.WatchDirResponse_KeepAlive{}}
		case <-ctx.Done():
			return reply.Error(sandbox.Errorf(sandbox.Canceled, "the request was given up"))
		}
		if err := send(out); err != nil {
			return err
		}
		silence.Reset(keepalive)
	}
}
