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

func (p *progress) run() {
	defer close(p.done)
	began := time.Now()
	first := time.NewTimer(progressDelay)
	defer first.Stop()
	select {
	case <-first.C:
	case <-p.stop:
		return
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		p.mu.Lock()
		line := p.what
		if p.detail != "" {
			line += ": " + p.detail
		}
		p.mu.Unlock()
		fmt.Fprintf(p.out, "\r\x1b[K%s (%ds)", terminal.Escape(line), int(time.Since(began).Seconds()))
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
