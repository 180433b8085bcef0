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
	// resolve finds Root and User of the request, and what they are of, while a
	// keeper is found: starting one takes as long as the rest. Nil: the request
	// has them.
	resolve func(ctx context.Context) (Resolved, error)
	// template is what the root is of, where there is no resolve. Without it
	// nothing is claimed.
	template sandbox.Template
	// image names the image of the request, for ready ones that were restored
	// from the same. "": only booted ones serve a request with an image.
	image   string
	release func() // of what resolve has returned; may be nil
	waits   bool   // has no place among the creates at work yet
	// intent are events that have not been journalled yet: they go with the
	// keeper's name, or before anything is acquired.
	intent []sandbox.Event
	files  []*os.File // of the request's mounts, in their order
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
	origin sandbox.Origin
}

// launch has a keeper make the sandbox of e, new or from an image, as req says,
// and returns when its guest has answered. It is the only way to one. Before
// the keeper is asked the journal names it, so after an error giveBack knows
// whom to ask, and the caller must see to it.
func (m *Manager) launch(ctx context.Context, e *entry, req *wire.Create, l launching) (*launched, error) {
	defer func() {
		if l.release != nil {
			l.release()
		}
	}()
	if out, err := m.claim(ctx, e, req, &l); out != nil || err != nil {
		return out, err
	}
	if l.waits {
		release, err := m.admit(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	if len(l.intent) > 0 {
		if err := m.update(e, l.intend); err != nil {
			return nil, err
		}
	}
	k, err := m.locate(ctx, req, &l)
	if err != nil {
		return nil, err
	}
	m.crash(l.atAcquired)
	if err := m.assign(e, k, &l); err != nil {
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
	out, err := m.answered(made, req)
	if err != nil {
		return nil, err
	}
	for _, s := range made.Timeline {
		l.tell("keeper: "+s.Name, began.Add(s.Start), s.Took)
	}
	l.tell("create", began, time.Since(began))
	return out, nil
}

// answered checks what a guest has said to the hello of req.
func (m *Manager) answered(made *wire.Created, req *wire.Create) (*launched, error) {
	out, err := answered(made, req.Hello.Start)
	if err != nil {
		return nil, err
	}
	return out, m.distinct(out, req.Image != "")
}

// answered checks what a guest has said to hello. The keeper has done so too.
func answered(made *wire.Created, asked *guest.Start) (*launched, error) {
	if err := made.Reply.Check(asked); err != nil {
		return nil, badGuest("an answer that cannot be: %v", err)
	}
	return &launched{Created: made, origin: sandbox.OriginCold}, nil
}

// answeredAs is the sentence of a sandbox that runs.
func answeredAs(o sandbox.Origin) string {
	switch o {
	case sandbox.OriginReady:
		return "the guest, which waited ready, has answered"
	case sandbox.OriginBooted:
		return "the guest has answered, in a kernel that waited booted"
	}
	return "the guest has answered"
}

func (l *launching) tell(name string, began time.Time, took time.Duration) {
	if l.step != nil {
		l.step(name, began, took)
	}
}

// resolveNow resolves the template, where it has not been.
func (l *launching) resolveNow(ctx context.Context, req *wire.Create) error {
	if l.resolve == nil {
		return nil
	}
	began := time.Now()
	root, err := l.resolve(ctx)
	l.release = root.Release
	if err != nil {
		return err
	}
	l.resolve = nil
	req.Root, req.User, l.template = root.Root, root.User, root.Template
	l.tell("template", began, time.Since(began))
	return nil
}

// locate gets a keeper and resolves the template meanwhile.
func (m *Manager) locate(ctx context.Context, req *wire.Create, l *launching) (Keeper, error) {
	resolved := make(chan error, 1)
	go func() { resolved <- l.resolveNow(ctx, req) }()
	began := time.Now()
	k, err := m.o.Keepers.Acquire(ctx, m.load)
	took := time.Since(began)
	rerr := <-resolved
	l.tell("keeper", began, took)
	if rerr != nil {
		return nil, rerr // the caller's mistake goes before the host's
	}
	return k, err
}

// assign writes down where the sandbox is about to be.
func (m *Manager) assign(e *entry, k Keeper, l *launching) error {
	e.mu.Lock()
	e.keeper = k
	e.mu.Unlock()
	return m.update(e, func(r *Record) ([]sandbox.Event, error) {
		r.Keeper, r.Instance = k.Name(), k.Instance()
		if l.assigned != nil {
			l.assigned(r)
		}
		return l.intend(r)
	})
}

// intend hands out the events that have not been journalled, once.
func (l *launching) intend(*Record) ([]sandbox.Event, error) {
	events := l.intent
	l.intent = nil
	return events, nil
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
