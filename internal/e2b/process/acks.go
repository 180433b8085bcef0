package process

import (
	"context"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

const (
	// ackEvery is how many bytes are taken before they are acknowledged: well
	// below the guest's buffer, so that the program need not wait for us.
	ackEvery = 512 << 10
	// ackTime bounds one acknowledgement.
	ackTime = 5 * time.Second
	// stallTime is how long a caller who does not read holds back a process that
	// others read, too.
	stallTime = 10 * time.Second
)

// audience is everybody who follows one process. What all of them have is
// acknowledged: the guest lets go of the rest only when its buffer is full.
// Service.mu guards it.
type audience struct {
	at   map[*follower]mark
	best guest.Ack // of anybody, ever
	sent guest.Ack
}

// mark is how far one follower has come, and since when.
type mark struct {
	have  guest.Ack
	since time.Time
}

// lag is what all have. Who has stalled, behind others, is not waited for.
func (a *audience) lag(now time.Time) guest.Ack {
	out := a.best
	for _, m := range a.at {
		if m.have != a.best && now.Sub(m.since) > stallTime {
			continue
		}
		out.Stdout, out.Stderr = min(out.Stdout, m.have.Stdout), min(out.Stderr, m.have.Stderr)
	}
	return out
}

// due returns what is to be acknowledged now, if it is enough to be worth it.
func (a *audience) due(now time.Time, enough int64) (guest.Ack, bool) {
	have := a.lag(now)
	have.Stdout, have.Stderr = max(have.Stdout, a.sent.Stdout), max(have.Stderr, a.sent.Stderr)
	if have.Stdout-a.sent.Stdout+have.Stderr-a.sent.Stderr < enough {
		return have, false
	}
	a.sent = have
	return have, true
}

// put notes how far a follower has come.
func (a *audience) put(f *follower, now time.Time) {
	if m, ok := a.at[f]; !ok || m.have != f.have {
		a.at[f] = mark{f.have, now}
	}
	a.best.Stdout, a.best.Stderr = max(a.best.Stdout, f.have.Stdout), max(a.best.Stderr, f.have.Stderr)
}

// join enters f into its audience. What was written before it came is nobody's
// where nobody else is: it does not hold the process.
func (f *follower) join(ctx context.Context) {
	f.s.mu.Lock()
	f.aud = f.s.audiences[f.e.id]
	if f.aud == nil {
		f.aud = &audience{at: map[*follower]mark{}}
		f.s.audiences[f.e.id] = f.aud
	}
	f.aud.put(f, time.Now())
	ack, ok := f.aud.due(time.Now(), 1)
	f.s.mu.Unlock()
	if ok {
		f.send(ctx, ack)
	}
}

// note tells the guest how far all have come, when that is worth a request and
// none of f's is under way.
func (f *follower) note(ctx context.Context) {
	select {
	case <-f.acking:
		f.acking = nil
	default:
	}
	f.s.mu.Lock()
	f.aud.put(f, time.Now())
	var ack guest.Ack
	ok := false
	if f.acking == nil {
		ack, ok = f.aud.due(time.Now(), ackEvery)
	}
	f.s.mu.Unlock()
	if !ok {
		return
	}
	done := make(chan struct{})
	f.acking = done
	go func() {
		defer close(done)
		f.send(ctx, ack)
	}()
}

// leave waits for what is under way and acknowledges what the others have, or
// what anybody had when there is nobody else.
func (f *follower) leave(ctx context.Context) {
	if f.acking != nil {
		<-f.acking
	}
	f.s.mu.Lock()
	f.aud.put(f, time.Now())
	delete(f.aud.at, f)
	if len(f.aud.at) == 0 && f.s.audiences[f.e.id] == f.aud {
		delete(f.s.audiences, f.e.id)
	}
	ack, ok := f.aud.due(time.Now(), 1)
	f.s.mu.Unlock()
	if ok {
		f.send(ctx, ack)
	}
}

// send acknowledges. A failure shows in the stream itself.
func (f *follower) send(ctx context.Context, a guest.Ack) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTime)
	defer cancel()
	_ = f.s.g.Ack(ctx, f.e.id, a)
}
