package gvisor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// oomWatch tells when the kernel runs out of memory in a v1 cgroup. It kills
// one process then, often a stub, and a sandbox that has lost one of its
// address spaces is of no more use. On v2 memory.oom.group ends all of them.
type oomWatch struct{ event *os.File }

// watchOOM registers an event with the cgroup. It returns nil where there is no
// v1 memory cgroup, or where the kernel does not notify.
func (g *group) watchOOM() *oomWatch {
	if g == nil {
		return nil
	}
	p, ok := g.dirs[ctlMemory]
	if !ok || p.V2 {
		return nil
	}
	control, err := os.Open(filepath.Join(p.Dir, "memory.oom_control"))
	if err != nil {
		return nil
	}
	defer control.Close() // the kernel keeps what it needs of it
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil
	}
	w := &oomWatch{event: os.NewFile(uintptr(fd), "oom")}
	if err := g.set(ctlMemory, "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		w.close()
		return nil
	}
	return w
}

// wait blocks until the kernel has run out of memory, and returns false when
// the watch was closed instead.
func (w *oomWatch) wait() bool {
	var count [8]byte
	_, err := w.event.Read(count[:])
	return err == nil
}

func (w *oomWatch) close() {
	if w != nil {
		w.event.Close()
	}
}
