package files

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
)

// Bounds on what the watchers of one sandbox hold. A watcher that is full reads
// no further: the guest's own queue, bounded too, then counts what is lost.
const (
	maxWatchers   = 24
	maxEvents     = 4096
	maxEventBytes = 512 << 10
)

// watchers are those that callers of CreateWatcher hold.
type watchers struct {
	ctx  context.Context
	mu   sync.Mutex
	byID map[string]*watcher
	busy int // places that are taken before there is a watcher
}

// watcher keeps events until its caller asks for them.
type watcher struct {
	w    *watch
	done chan struct{} // closed when its goroutine has ended

	mu     sync.Mutex
	events []*wire.FilesystemEvent
	bytes  int
	err    error         // why there will be no more
	room   chan struct{} // closed when events have been taken; nil: nobody waits
}

// CreateWatcher watches a directory for a caller who asks for events himself.
func (s *Service) CreateWatcher(ctx context.Context, req *wire.CreateWatcherRequest) (*wire.CreateWatcherResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	if !s.watchers.place() {
		return nil, reply.Coded(connect.CodeResourceExhausted, "a sandbox has at most 24 watchers; remove one")
	}
	defer s.watchers.unplace()
	// The watch outlives the call, but a call that is given up makes none.
	flow, cancel := context.WithCancel(s.watchers.ctx)
	stop := context.AfterFunc(ctx, cancel)
	w, err := s.begin(flow, user, req)
	if err != nil || !stop() {
		cancel()
		if w != nil {
			w.close()
		}
		return nil, reply.Error(err)
	}
	id := strings.ToLower(rand.Text())
	s.watchers.add(id, w, flow, cancel)
	return &wire.CreateWatcherResponse{WatcherId: id}, nil
}

func (t *watchers) place() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID)+t.busy >= maxWatchers || t.ctx.Err() != nil {
		return false
	}
	t.busy++
	return true
}

func (t *watchers) unplace() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
}

func (t *watchers) add(id string, w *watch, flow context.Context, cancel context.CancelFunc) {
	watching := &watcher{w: w, done: make(chan struct{})}
	t.mu.Lock()
	t.byID[id] = watching
	t.mu.Unlock()
	go func() {
		defer close(watching.done)
		defer cancel()
		defer w.close()
		watching.run(flow)
	}()
}

// run gathers events until the watch ends.
func (w *watcher) run(ctx context.Context) {
	for {
		ev, err := w.w.next(ctx)
		if !w.push(ctx, ev, err) {
			return
		}
	}
}

// push keeps an event, waiting for room; false when there will be no more.
func (w *watcher) push(ctx context.Context, ev *wire.FilesystemEvent, err error) bool {
	w.mu.Lock()
	if err != nil {
		w.err = err
		w.mu.Unlock()
		return false
	}
	w.events = append(w.events, ev)
	w.bytes += proto.Size(ev)
	var room chan struct{}
	if len(w.events) >= maxEvents || w.bytes >= maxEventBytes {
		room = make(chan struct{})
		w.room = room
	}
	w.mu.Unlock()
	if room == nil {
		return true
	}
	select {
	case <-room:
		return true
	case <-ctx.Done():
		return false
	}
}

// take returns the events so far. When there are none and there will be none,
// it returns why.
func (w *watcher) take() ([]*wire.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.events
	if len(out) == 0 && w.err != nil {
		return nil, w.err
	}
	w.events, w.bytes = nil, 0
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return out, nil
}

func (t *watchers) get(id string) (*watcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.byID[id]; w != nil {
		return w, nil
	}
	return nil, reply.Coded(connect.CodeNotFound, "there is no such watcher")
}

// remove ends a watcher and waits for it.
func (t *watchers) remove(id string) bool {
	t.mu.Lock()
	w := t.byID[id]
	delete(t.byID, id)
	t.mu.Unlock()
	if w == nil {
		return false
	}
	w.w.close()
	<-w.done
	return true
}

func (t *watchers) close() {
	t.mu.Lock()
	var ids []string
	for id := range t.byID {
		ids = append(ids, id)
	}
	t.mu.Unlock()
	for _, id := range ids {
		t.remove(id)
	}
}

// GetWatcherEvents returns the events since it was last called.
func (s *Service) GetWatcherEvents(ctx context.Context, req *wire.GetWatcherEventsRequest) (*wire.GetWatcherEventsResponse, error) {
	w, err := s.watchers.get(req.GetWatcherId())
	if err != nil {
		return nil, err
	}
	events, err := w.take()
	if err != nil {
		s.watchers.remove(req.GetWatcherId())
		return nil, err
	}
	return &wire.GetWatcherEventsResponse{Events: events}, nil
}

// RemoveWatcher ends a watcher.
func (s *Service) RemoveWatcher(ctx context.Context, req *wire.RemoveWatcherRequest) (*wire.RemoveWatcherResponse, error) {
	if !s.watchers.remove(req.GetWatcherId()) {
		return nil, reply.Coded(connect.CodeNotFound, "there is no such watcher")
	}
	return &wire.RemoveWatcherResponse{}, nil
}
