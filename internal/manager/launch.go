package manager

import (
	"context"
	"os"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// launching is what a sandbox that a keeper is about to make needs besides the
// keeper's request.
type launching struct {
	// resolve finds Root and User of the request while a keeper is found:
	// starting one takes as long as the rest. Nil: the request has them.
	resolve func(ctx context.Context) (Resolved, error)
	files   []*os.File // of the request's mounts, in their order
	// assigned changes the record in the same step that names the keeper.
	assigned func(r *Record)
	// step is told of each step as it ends. Nil: nobody wants to know.
	step func(name string, began time.Time, took time.Duration)
	// The crash points: a keeper runs, the journal names it, it is at work.
	atAcquired, atAssigned, atSent string
}

// launched is a sandbox that has answered its keeper's hello, whose answer has
// been checked.
type launched struct {
	*wire.Created
}

// launch has a keeper make the sandbox of e, new or from an image, as req says,
// and returns when its guest has answered. It is the only way to one. Before
// the keeper is asked the journal names it, so after an error giveBack knows
// whom to ask, and the caller must see to it.
func (m *Manager) launch(ctx context.Context, e *entry, req *wire.Create, l launching) (*launched, error) {
	root, k, err := m.locate(ctx, req, &l)
	if root.Release != nil {
		defer root.Release()
	}
	if err != nil {
		return nil, err
	}
	m.crash(l.atAcquired)
	if err := m.assign(e, k, l.assigned); err != nil {
		return nil, err
	}
	m.crash(l.atAssigned)
	if len(l.files) > 0 {
		ticket, err := k.SendFiles(ctx, l.files)
		if err != nil {
			return nil, err
		}
		for i := range req.Mounts {
			req.Mounts[i].Ticket, req.Mounts[i].Index = ticket, i
		}
	}
	defer m.crashDuring(l.atSent, 5*time.Millisecond)()
	began := time.Now()
	made, err := k.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	out, err := answered(made, req.Hello.Start)
	if err != nil {
		return nil, err
	}
	for _, s := range made.Timeline {
		l.tell("keeper: "+s.Name, began.Add(s.Start), s.Took)
	}
	l.tell("create", began, time.Since(began))
	return out, nil
}

// answered checks what a guest has said to hello. The keeper has done so too.
func answered(made *wire.Created, asked *guest.Start) (*launched, error) {
	if err := made.Reply.Check(asked); err != nil {
		return nil, badGuest("an answer that cannot be: %v", err)
	}
	return &launched{Created: made}, nil
}

func (l *launching) tell(name string, began time.Time, took time.Duration) {
	if l.step != nil {
		l.step(name, began, took)
	}
}

// locate resolves the template, where it has not been, and gets a keeper.
func (m *Manager) locate(ctx context.Context, req *wire.Create, l *launching) (Resolved, Keeper, error) {
	type result struct {
		root Resolved
		err  error
		took time.Duration
	}
	began := time.Now()
	resolved := make(chan result, 1)
	if l.resolve == nil {
		resolved <- result{root: Resolved{Root: req.Root, User: req.User}}
	} else {
		go func() {
			root, err := l.resolve(ctx)
			resolved <- result{root, err, time.Since(began)}
		}()
	}
	k, err := m.o.Keepers.Acquire(ctx, m.load)
	took := time.Since(began)
	r := <-resolved
	if l.resolve != nil && r.err == nil {
		l.tell("template", began, r.took)
	}
	l.tell("keeper", began, took)
	if r.err != nil {
		return r.root, nil, r.err // the caller's mistake goes before the host's
	}
	req.Root, req.User = r.root.Root, r.root.User
	return r.root, k, err
}

// assign writes down where the sandbox is about to be.
func (m *Manager) assign(e *entry, k Keeper, also func(r *Record)) error {
	e.mu.Lock()
	e.keeper = k
	e.mu.Unlock()
	return m.update(e, func(r *Record) ([]sandbox.Event, error) {
		r.Keeper, r.Instance = k.Name(), k.Instance()
		if also != nil {
			also(r)
		}
		return nil, nil
	})
}

// crashDuring passes a crash point after d, unless what it returns is called
// before.
func (m *Manager) crashDuring(point string, d time.Duration) (stop func()) {
	if m.o.Crash == nil {
		return func() {}
	}
	t := time.AfterFunc(d, func() { m.crash(point) })
	return func() { t.Stop() }
}
