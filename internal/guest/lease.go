package guest

import (
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// lease bounds how long a process outlives its last reader. The reader is its
// owner: when the one has gone for good, nobody is left to end the other. The
// lock is that of outputs.
type lease struct {
	time  time.Duration // 0: the process needs no reader
	timer *time.Timer
	ends  time.Time
	over  bool // it has been killed for want of a reader
}

// begin has over called when nobody attaches in time. The caller holds the lock
// of outputs, here and below.
func (l *lease) begin(over func()) {
	if l.time <= 0 {
		return
	}
	l.ends = time.Now().Add(l.time)
	l.timer = time.AfterFunc(l.time, over)
}

// renew is for the first reader that comes.
func (l *lease) renew() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// count begins to count again when the last reader has left.
func (l *lease) count() {
	if l.timer != nil {
		l.ends = time.Now().Add(l.time)
		l.timer.Reset(l.time)
	}
}

// orphan kills the whole tree of a process without a reader.
func (p *process) orphan() {
	p.out.mu.Lock()
	l := &p.lease
	// A timer that had fired before it was set anew means nothing.
	alone := len(p.out.readers) == 0 && !p.out.exited && !p.out.closed && !time.Now().Before(l.ends)
	l.over = l.over || alone
	p.out.mu.Unlock()
	if alone {
		p.server.noteFull(p.tree)
		p.tree.kill(p.server.base)
	}
}

// orphaned marks the exit of a process that was killed for want of a reader.
func (p *process) orphaned(exit *sandbox.Exit) bool {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	if p.lease.over && exit.Signal != 0 {
		exit.Reason = sandbox.ReasonOrphaned
	}
	return p.lease.over
}
