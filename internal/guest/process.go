package guest

import (
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	// keepRead and keepUnread are how long an ended process is remembered: when
	// all its output has been acknowledged and a reader told of its exit, and
	// when not.
	keepRead   = 30 * time.Second
	keepUnread = 10 * time.Minute
	// maxEnded bounds the ended processes that are remembered, the oldest go
	// first.
	maxEnded = 64
)

// process is one process begun by start.
type process struct {
	server   *Server
	begun    chan struct{} // closed when start is over
	failed   error         // of start; read it after begun
	started  chan struct{} // closed when the pid is known
	same     []byte        // the request, to compare
	info     wire.Process  // fixed after start, but for the counts
	keepTree bool
	tree     tree
	stdin    *stdin
	master   *os.File // of a PTY

	out     outputs
	streams []*stream
	turn    int   // guarded by out.mu
	lease   lease // guarded by out.mu

	mu       sync.Mutex
	reaped   bool
	exit     *sandbox.Exit
	timedOut bool
	timeout  *time.Timer
	expiry   *time.Timer
	gone     chan struct{} // closed when the process has been reaped and its tree dealt with
}

// ends are descriptors that the child gets copies of.
type ends []int

func (e ends) close() {
	for _, fd := range e {
		unix.Close(fd)
	}
}

// connect makes the child's three descriptors and our ends of them.
func (p *process) connect(c *child, req *wire.Start, id identity, limit int64) (given ends, err error) {
	if limit == 0 {
		limit = sandbox.DefaultOutputBytes
	}
	defer func() {
		if err != nil {
			given.close()
			p.abandon()
		}
	}()
	if req.PTY != nil {
		master, slave, err := openPTY(*req.PTY, id)
		if err != nil {
			return nil, err
		}
		given = ends{slave}
		c.fds = [3]int{slave, slave, slave}
		p.master = master
		p.stdin = &stdin{f: master, tty: true}
		err = p.addStream(wire.Stdout, master, limit)
		if err == nil {
			p.streams[0].tty = true
		}
		return given, err
	}
	for i := range 3 {
		var ours *os.File
		ours, c.fds[i], err = childEnd(i, req.Stdin)
		if err != nil {
			return given, err
		}
		given = append(given, c.fds[i])
		switch {
		case i > 0:
			err = p.addStream(wire.Stream(i), ours, limit)
		case ours != nil:
			p.stdin = &stdin{f: ours}
		}
		if err != nil {
			return given, err
		}
	}
	return given, nil
}

// childEnd makes descriptor i of a child without a terminal, and our end.
func childEnd(i int, withStdin bool) (ours *os.File, theirs int, err error) {
	if i == 0 && !withStdin {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return nil, fd, err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	mine, other := p[0], p[1]
	if i == 0 {
		mine, other = p[1], p[0]
	}
	if _, err := unix.FcntlInt(uintptr(mine), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		unix.Close(mine)
		unix.Close(other)
		return nil, -1, err
	}
	return os.NewFile(uintptr(mine), "pipe"), other, nil
}

func (p *process) addStream(kind wire.Stream, f *os.File, limit int64) error {
	s, err := newStream(&p.out, kind, f, limit, &p.server.hits)
	if err == nil {
		p.streams = append(p.streams, s)
	}
	return err
}

// abandon closes what connect made, when there is no process in the end.
func (p *process) abandon() {
	if p.stdin != nil {
		p.stdin.close()
	}
	for _, s := range p.streams {
		s.f.Close()
	}
}

// run begins the life of a process that has executed its program.
func (p *process) run(pid int, timeout time.Duration) {
	p.info.PID = pid
	if t, ok := p.tree.(*procTree); ok {
		t.root.Store(int64(pid))
	}
	p.out.mu.Lock()
	p.out.heldUntil = time.Now().Add(p.server.cfg.ReaderGrace)
	p.lease.begin(p.orphan)
	p.out.mu.Unlock()
	for _, s := range p.streams {
		go s.pump(p.settled)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.started)
	if timeout > 0 && !p.reaped {
		p.timeout = time.AfterFunc(timeout, p.expire)
	}
}

func (p *process) expire() {
	p.mu.Lock()
	late := p.reaped
	p.timedOut = !late
	p.mu.Unlock()
	if !late {
		p.server.hits.add(hitTime)
		p.server.noteFull(p.tree)
		p.tree.kill(p.server.base)
	}
}

// ended is called once, when the process has been reaped.
func (p *process) ended(ws unix.WaitStatus) {
	<-p.started
	p.tree.rootEnded()
	p.mu.Lock()
	p.reaped = true
	if p.timeout != nil {
		p.timeout.Stop()
	}
	exit := &sandbox.Exit{Code: ws.ExitStatus(), TimedOut: p.timedOut, At: time.Now()}
	if ws.Signaled() {
		exit.Code, exit.Signal = -1, int(ws.Signal())
	}
	if exit.TimedOut {
		exit.Reason = "timeout"
	}
	p.mu.Unlock()
	orphaned := p.orphaned(exit)
	if !p.keepTree || exit.TimedOut || orphaned {
		p.server.noteFull(p.tree)
		p.tree.kill(p.server.base)
	}
	p.mu.Lock()
	p.exit = exit
	p.mu.Unlock()
	if p.stdin != nil {
		p.stdin.hangup()
	}
	p.out.mu.Lock()
	p.out.exited = true
	p.lease.renew() // nothing is left to kill
	p.out.mu.Unlock()
	for _, s := range p.streams {
		s.interrupt()
	}
	close(p.gone)
	p.settled()
	p.expireAfter(keepRead)
}

// settled ends the output once every stream has come as far as the process
// wrote.
func (p *process) settled() {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	if !p.out.exited || p.out.done {
		return
	}
	for _, s := range p.streams {
		if !s.drained {
			return
		}
	}
	p.out.done = true
	p.out.wakeReaders()
}

func (p *process) expireAfter(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expiry == nil {
		p.expiry = time.AfterFunc(d, p.forgetIfDone)
	} else {
		p.expiry.Reset(d)
	}
}

// forgetIfDone forgets an ended process unless somebody still needs it.
func (p *process) forgetIfDone() {
	p.out.mu.Lock()
	reading := len(p.out.readers) > 0
	unread := !p.out.told
	for _, s := range p.streams {
		unread = unread || s.acked < s.end
	}
	p.out.mu.Unlock()
	old := time.Since(p.exit.At)
	if reading || unread && old < keepUnread || !p.tree.empty() {
		p.expireAfter(keepRead)
		return
	}
	p.release()
}

// release forgets the process. Its tree has ended or is to live on.
func (p *process) release() {
	p.server.procs.remove(p)
	p.mu.Lock()
	if p.expiry != nil {
		p.expiry.Stop()
	}
	p.mu.Unlock()
	p.out.mu.Lock()
	p.out.closed = true
	p.out.wakeReaders()
	for _, s := range p.streams {
		s.ring = nil
		s.start = s.end
	}
	p.out.mu.Unlock()
	for _, s := range p.streams {
		s.f.Close()
		s.poke()
	}
	if p.stdin != nil {
		p.stdin.close()
	}
}

// destroy kills the whole tree and forgets the process; nothing is left of it
// when it returns nil.
func (p *process) destroy(ctx context.Context) error {
	for {
		if err := p.tree.kill(ctx); err != nil {
			return err
		}
		select {
		case <-p.gone:
			p.release()
			return nil
		case <-ctx.Done():
			return sandbox.Errorf(sandbox.DeadlineExceeded, "the process has not ended yet").WithField("id", p.info.ID)
		case <-time.After(killPoll):
		}
	}
}

func (p *process) status() wire.Process {
	out := p.info
	p.mu.Lock()
	out.Exit = p.exit
	p.mu.Unlock()
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	for i, s := range p.streams {
		if i == 0 {
			out.Stdout = s.counts()
		} else {
			out.Stderr = s.counts()
		}
	}
	if p.stdin != nil {
		out.Stdin = p.stdin.taken.Load()
	}
	return out
}

func (s *Server) postProcess(q *request) error {
	var req wire.Start
	if err := q.decode(&req); err != nil {
		return err
	}
	p, err := s.start(&req)
	if err != nil {
		return err
	}
	if q.URL.Query().Get("output") == "1" {
		return p.startOutput(q)
	}
	return q.json(p.status())
}

func (s *Server) listProcesses(q *request) error {
	out := []wire.Process{}
	for _, p := range s.procs.all() {
		out = append(out, p.status())
	}
	return q.json(out)
}

func (s *Server) getProcess(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	return q.json(p.status())
}

func (s *Server) deleteProcess(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	if err := p.destroy(q.ctx); err != nil {
		return err
	}
	return noContent(q)
}

// process returns the one that the request names.
func (s *Server) process(q *request) (*process, error) {
	id := q.PathValue("id")
	if p := s.procs.get(id); p != nil {
		return p, nil
	}
	return nil, sandbox.Errorf(sandbox.NotFound, "no such process, or it ended some time ago").WithField("id", id)
}

func (s *Server) postSignal(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	var sig wire.Signal
	if err := q.decode(&sig); err != nil {
		return err
	}
	if sig.Signal < 1 || sig.Signal > 64 {
		return sandbox.Errorf(sandbox.Invalid, "a signal is a number from 1 to 64").WithField("signal", strconv.Itoa(sig.Signal))
	}
	return p.send(q, sig)
}

func (p *process) send(q *request, sig wire.Signal) error {
	if sig.Tree {
		p.tree.signal(unix.Signal(sig.Signal))
		return noContent(q)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return sandbox.Errorf(sandbox.Conflict, "the process has ended").WithField("id", p.info.ID)
	}
	// Reaping takes the lock before the number can be used again.
	if err := unix.Kill(-p.info.PID, unix.Signal(sig.Signal)); err != nil && err != unix.ESRCH {
		return fsError("signal", p.info.ID, err)
	}
	return noContent(q)
}

func (s *Server) postResize(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	var size wire.PTYSize
	if err := q.decode(&size); err != nil {
		return err
	}
	if p.master == nil {
		return sandbox.Errorf(sandbox.Invalid, "the process has no terminal").WithField("id", p.info.ID)
	}
	raw, err := p.master.SyscallConn()
	if err == nil {
		var werr error
		if err = raw.Control(func(fd uintptr) { werr = setWindow(int(fd), size) }); err == nil {
			err = werr
		}
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Conflict, "the terminal is gone").WithCause(err)
	}
	return noContent(q)
}
