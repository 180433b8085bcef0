package gvisor

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// spawner starts processes from operating system threads that never end.
//
// Three properties of a child are taken from the thread that forks it: its
// parent-death signal fires when that thread ends, and on cgroup v1 its cgroups
// are that thread's. So each thread is locked to one goroutine that lives as
// long as the process, is moved into the sandbox's cgroups before it forks and
// back afterwards.
type spawner struct {
	work chan func(tid int)
}

// newSpawner starts n threads. They end with the process: ending one earlier
// would kill the sandboxes that it started. Each first joins the v1 cgroups in
// which it already is: the first move after a while makes the kernel wait for
// some 10 ms, which are thus over when the first sandbox comes.
func newSpawner(n int, own []place) *spawner {
	s := &spawner{work: make(chan func(int))}
	for range n {
		go func() {
			runtime.LockOSThread()
			tid := unix.Gettid()
			for _, p := range own {
				if !p.V2 {
					_ = moveThread(tid, p.Dir) // enter will tell what is wrong
				}
			}
			for f := range s.work {
				f(tid)
			}
			select {}
		}()
	}
	return s
}

// do runs f on one of the threads and waits for it.
func (s *spawner) do(f func(tid int) error) error {
	done := make(chan error, 1)
	s.work <- func(tid int) { done <- f(tid) }
	return <-done
}

// start starts cmd inside g.
func (s *spawner) start(cmd *exec.Cmd, g *group) error {
	return s.do(func(tid int) error {
		leave, err := g.enter(tid, cmd.SysProcAttr)
		if err != nil {
			return err
		}
		err = cmd.Start()
		if lerr := leave(); err == nil && lerr != nil {
			_ = cmd.Process.Kill()
			_, _ = cmd.Process.Wait()
			return lerr
		}
		return err
	})
}
