package guest

import (
	"sync"
	"syscall"

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
	reaped  chan struct{} // closed and renewed at every end

	begin sync.Once
	born  chan struct{} // tells that there is a child again
}

func newReaper() *reaper {
	return &reaper{
		tracked: map[int]func(unix.WaitStatus){},
		reaped:  make(chan struct{}),
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
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no children
			<-r.born
		case ws.Exited() || ws.Signaled():
			r.ended(pid, unix.WaitStatus(ws))
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
	close(r.reaped)
	r.reaped = make(chan struct{})
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

// next returns a channel that is closed when the next child has been reaped.
func (r *reaper) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reaped
}
