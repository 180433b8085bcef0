package cli

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
)

// progressDelay keeps quick work silent.
const progressDelay = 700 * time.Millisecond

// progress tells a person on standard error that long work goes on. It is
// silent when standard error is not a terminal. Its methods are safe for
// concurrent use and on nil.
type progress struct {
	out  *os.File
	what string

	mu     sync.Mutex
	detail string
	stop   chan struct{}
	done   chan struct{}
}

// progress begins to tell of what; end must be called.
func (a *app) progress(what string) *progress {
	if !a.ttyErr() {
		return nil
	}
	p := &progress{out: a.err, what: what, stop: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p
}

// longProgress is progress of work of minutes: without a terminal it says now
// and then, in a line of its own, that it goes on.
func (a *app) longProgress(what string) *progress {
	p := &progress{out: a.err, what: what, stop: make(chan struct{}), done: make(chan struct{})}
	if a.ttyErr() {
		go p.run()
	} else {
		go p.lines()
	}
	return p
}

// lineEvery is how often work without a terminal says that it goes on.
const lineEvery = 15 * time.Second

func (p *progress) lines() {
	defer close(p.done)
	began := time.Now()
	if !p.lasts() {
		return
	}
	tick := time.NewTicker(lineEvery)
	defer tick.Stop()
	fmt.Fprintf(p.out, "%s\n", terminal.Escape(p.what))
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(p.out, "%s (%ds)\n", terminal.Escape(p.line()), int(time.Since(began).Seconds()))
		case <-p.stop:
			return
		}
	}
}

// lasts reports whether the work is not over at once.
func (p *progress) lasts() bool {
	first := time.NewTimer(progressDelay)
	defer first.Stop()
	select {
	case <-first.C:
		return true
	case <-p.stop:
		return false
	}
}

func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.detail == "" {
		return p.what
	}
	return p.what + ": " + p.detail
}

func (p *progress) run() {
	defer close(p.done)
	began := time.Now()
	if !p.lasts() {
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		fmt.Fprintf(p.out, "\r\x1b[K%s (%ds)", terminal.Escape(p.line()), int(time.Since(began).Seconds()))
		select {
		case <-tick.C:
		case <-p.stop:
			fmt.Fprint(p.out, "\r\x1b[K")
			return
		}
	}
}

// set changes the detail, which may come from a guest.
func (p *progress) set(detail string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.detail = detail
	p.mu.Unlock()
}

// end removes the line.
func (p *progress) end() {
	if p == nil {
		return
	}
	close(p.stop)
	<-p.done
}
