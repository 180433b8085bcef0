package channel

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// readers keeps watch over the bodies of a channel's answers. A body that
// nobody reads holds part of the channel's budget; enough of them would hold
// all of it, and no other answer could arrive. So those that have been left
// longest are given up while the budget is nearly spoken for. Output of processes can be asked for again from an offset.
//
// Invariant: a body that is being read holds nothing.
type readers struct {
	most    int           // bodies that may be left unread
	patient time.Duration // how long a body may go unread before it counts

	done <-chan struct{} // closed with the channel

	mu       sync.Mutex
	open     map[*body]struct{}
	watching bool
}

func newReaders(l Limits, done <-chan struct{}) *readers {
	return &readers{
		done:    done,
		most:    max(1, l.BufferedBytes/l.StreamBytes*3/4),
		patient: l.ReadTime,
		open:    map[*body]struct{}{},
	}
}

// relieve gives up what has been left longest, as far as needed.
func (r *readers) relieve(now time.Time) {
	r.mu.Lock()
	if len(r.open) < r.most {
		r.mu.Unlock()
		return
	}
	var left []*body
	for b := range r.open {
		if since, reading := b.idle(); !reading && now.Sub(since) > r.patient {
			left = append(left, b)
		}
	}
	r.mu.Unlock()
	if len(left) < r.most {
		return
	}
	slices.SortFunc(left, func(a, b *body) int { return a.lastRead().Compare(b.lastRead()) })
	for _, b := range left[:len(left)-r.most+1] {
		b.giveUp()
	}
}

func (r *readers) add(b *body) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[b] = struct{}{}
	if len(r.open) >= r.most && !r.watching {
		r.watching = true
		go r.watch()
	}
}

// watch gives up what is left unread for as long as there is much: answers that
// are under way already wait for the room, too.
func (r *readers) watch() {
	tick := time.NewTicker(max(r.patient/4, time.Millisecond))
	defer tick.Stop()
	for r.goesOn() {
		select {
		case <-tick.C:
			r.relieve(time.Now())
		case <-r.done:
			return
		}
	}
}

// goesOn reports whether there is something to watch, and else ends the watch.
func (r *readers) goesOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watching = len(r.open) >= r.most
	return r.watching
}

func (r *readers) drop(b *body) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, b)
}

// body is the body of an answer. It gives its place back when it has ended or
// is closed.
type body struct {
	io.ReadCloser
	host *Host
	once sync.Once

	mu      sync.Mutex
	reading bool
	last    time.Time // of the end of the last Read
	givenUp bool
}

func (h *Host) wrap(resp *http.Response) {
	b := &body{ReadCloser: resp.Body, host: h, last: time.Now()}
	h.readers.add(b)
	resp.Body = b
}

func (b *body) idle() (since time.Time, reading bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.reading
}

func (b *body) lastRead() time.Time {
	at, _ := b.idle()
	return at
}

// begin marks a read, unless the body has been given up.
func (b *body) begin() (ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = !b.givenUp
	return b.reading
}

func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading, b.last = false, time.Now()
}

// Read returns Unavailable for a body that has been given up.
func (b *body) Read(p []byte) (int, error) {
	if !b.begin() {
		return 0, sandbox.Errorf(sandbox.Unavailable, "the answer was not read for too long and has been given up").
			WithHint("ask again; output of a process goes on at any offset")
	}
	n, err := b.ReadCloser.Read(p)
	b.end()
	if err != nil {
		b.leave()
	}
	return n, err
}

// Close gives up what has not been read.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.leave()
	return err
}

func (b *body) leave() {
	b.once.Do(func() {
		b.host.readers.drop(b)
		b.host.leave()
	})
}

// giveUp closes the stream unless somebody has begun to read meanwhile.
func (b *body) giveUp() {
	b.mu.Lock()
	give := !b.reading
	b.givenUp = b.givenUp || give
	b.mu.Unlock()
	if give {
		b.Close()
	}
}
