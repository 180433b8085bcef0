package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signalError is the cause of a context that a signal has ended.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("ended by signal: %v", e.sig) }

// status is the exit code of a program that the signal has ended.
func (e *signalError) status() exitStatus { return exitStatus(128 + int(e.sig)) }

// forwarded are the signals that go on to the command.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// patience is how many times a person asks for the end before the command is
// not asked any more.
const patience = 3

// relay takes the process's signals: until the command runs they end the
// context, from then on they are passed to the command. A command that was
// asked three times to end is not asked again.
type relay struct {
	out    chan int
	ch     chan os.Signal
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu      sync.Mutex
	started bool
	asked   int
}

// newRelay begins to take signals. stop gives them back.
func newRelay(ctx context.Context) (context.Context, *relay) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &relay{out: make(chan int, 16), ch: make(chan os.Signal, 16), cancel: cancel, done: make(chan struct{})}
	for _, s := range forwarded {
		if !signal.Ignored(s) { // nohup, or a shell's background job
			signal.Notify(r.ch, s)
		}
	}
	go r.run()
	return ctx, r
}

func (r *relay) run() {
	for {
		select {
		case s := <-r.ch:
			r.take(s.(syscall.Signal))
		case <-r.done:
			return
		}
	}
}

func (r *relay) take(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ending := s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
	if ending {
		r.asked++
	}
	if ending && (!r.started || r.asked >= patience) {
		r.cancel(&signalError{s})
		return
	}
	if r.started {
		select {
		case r.out <- int(s):
		default: // the command does not take signals as fast as they come
		}
	}
}

// begin is called when the command runs.
func (r *relay) begin() {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
}

func (r *relay) stop() {
	signal.Stop(r.ch)
	close(r.done)
	r.cancel(nil)
}

// interrupted returns the exit code when a signal has ended ctx.
func interrupted(ctx context.Context) (exitStatus, bool) {
	if e, ok := context.Cause(ctx).(*signalError); ok {
		return e.status(), true
	}
	return 0, false
}
