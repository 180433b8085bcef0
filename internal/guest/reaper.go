package guest

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reaper collects the ends of all children: the processes that were begun and
// the orphans that PID 1 inherits. It alone waits for children in this process.
type reaper struct {
	// forking is held shared from a fork until the pid is known here, so that
	// no end is looked up before its beginning.
	forking sync.RWMutex

	mu      sync.Mutex
	tracked map[int]func(unix.WaitStatus)
	count   int64 // ends so far
	goals   map[chan struct{}]int64

	begin sync.Once
	born  chan struct{} // tells that there is a child again
}

func newReaper() *reaper {
	return &reaper{
		tracked: map[int]func(unix.WaitStatus){},
		goals:   map[chan struct{}]int64{},
		born:    make(chan struct{}, 1),
	}
}

// spawn forks c and has exited called, in a goroutine of its own, when the
// process ends.
func (r *reaper) spawn(c *child, exited func(unix.WaitStatus)) (int, step, error) {
	r.begin.Do(func() { go r.loop() })
	r.forking.RLock()
	defer r.forking.RUnlock()
	pid, at, err := c.fork()
	if err == nil {
		r.mu.Lock()
		r.tracked[pid] = exited
		r.mu.Unlock()
	}
	select {
	case r.born <- struct{}{}:
	default:
	}
	return pid, at, err
}

// loop blocks in wait4: an end is told with one system call and no signal.
func (r *reaper) loop() {
	status := new(uint32)
	for {
		pid, err := waitChild(status)
		ws := unix.WaitStatus(*status)
		switch {
		case err == unix.EINTR:
		case err != 0: // no children
			<-r.born
		case ws.Exited() || ws.Signaled():
			r.ended(pid, ws)
		}
	}
}

func (r *reaper) ended(pid int, ws unix.WaitStatus) {
	exited, known := r.take(pid)
	if !known {
		// An orphan, or a process whose fork is just returning.
		r.forking.Lock()
		exited, _ = r.take(pid)
		r.forking.Unlock()
	}
	r.mu.Lock()
	r.count++
	for reached, goal := range r.goals {
		if r.count >= goal {
			close(reached)
			delete(r.goals, reached)
		}
	}
	r.mu.Unlock()
	if exited != nil {
		go exited(ws)
	}
}

func (r *reaper) take(pid int) (func(unix.WaitStatus), bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.tracked[pid]
	delete(r.tracked, pid)
	return f, ok
}

// ends returns how many children have been reaped so far.
func (r *reaper) ends() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// await waits until goal children have been reaped, or for over.
func (r *reaper) await(ctx context.Context, goal int64, over <-chan time.Time) error {
	reached := make(chan struct{})
	r.mu.Lock()
	if r.count >= goal {
		r.mu.Unlock()
		return nil
	}
	r.goals[reached] = goal
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.goals, reached)
		r.mu.Unlock()
	}()
	select {
	case <-reached:
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
