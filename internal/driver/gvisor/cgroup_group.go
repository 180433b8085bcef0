package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuPeriod is the period of a CPU quota in microseconds, the kernel's default.
const cpuPeriod = 100_000

// set writes one control file of a controller.
func (g *group) set(controller, file, value string) error {
	p, ok := g.dirs[controller]
	if !ok {
		return fmt.Errorf("no %s cgroup", controller)
	}
	return writeControl(filepath.Join(p.Dir, file), value)
}

// writeControl writes an existing control file. os.WriteFile would try to
// create a missing one and report that it may not.
func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func (g *group) get(controller, file string) (string, error) {
	p, ok := g.dirs[controller]
	if !ok {
		return "", fmt.Errorf("no %s cgroup", controller)
	}
	b, err := os.ReadFile(filepath.Join(p.Dir, file))
	return strings.TrimSpace(string(b)), err
}

func (g *group) getInt(controller, file string) (int64, error) {
	s, err := g.get(controller, file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

// getKey reads "key value" from a file of such lines.
func (g *group) getKey(controller, file, key string) (int64, error) {
	s, err := g.get(controller, file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %q", file, key)
}

// setCPU bounds CPU time and returns what holds it.
func (g *group) setCPU(cpus float64) (string, error) {
	quota := strconv.FormatInt(int64(cpus*cpuPeriod), 10)
	if g.dirs[ctlCPU].V2 {
		return "cgroup v2 cpu.max", g.set(ctlCPU, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod))
	}
	if err := g.set(ctlCPU, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
		return "", err
	}
	return "cgroup v1 cpu.cfs_quota_us", g.set(ctlCPU, "cpu.cfs_quota_us", quota)
}

// setMemory bounds memory with swap off and returns what holds it.
func (g *group) setMemory(limit int64) (string, error) {
	v := strconv.FormatInt(limit, 10)
	if g.dirs[ctlMemory].V2 {
		if err := g.set(ctlMemory, "memory.max", v); err != nil {
			return "", err
		}
		by := "cgroup v2 memory.max"
		switch err := g.set(ctlMemory, "memory.swap.max", "0"); {
		case err == nil:
			by += ", memory.swap.max"
		case !errors.Is(err, os.ErrNotExist): // no swap accounting: nothing to set
			return "", err
		}
		// The kernel ends the sandbox as one: a sentry without its stubs, or
		// the other way about, is of no use.
		_ = g.set(ctlMemory, "memory.oom.group", "1")
		return by, nil
	}
	if err := g.set(ctlMemory, "memory.limit_in_bytes", v); err != nil {
		return "", err
	}
	by := "cgroup v1 memory.limit_in_bytes"
	switch err := g.set(ctlMemory, "memory.memsw.limit_in_bytes", v); {
	case err == nil:
		by += ", memory.memsw.limit_in_bytes"
	case errors.Is(err, os.ErrNotExist): // no swap accounting
		_ = g.set(ctlMemory, "memory.swappiness", "0")
	default:
		return "", err
	}
	return by, nil
}

// setTasks bounds the host's tasks.
func (g *group) setTasks(n int64) error {
	return g.set(ctlPIDs, "pids.max", strconv.FormatInt(n, 10))
}

// oomKills counts what the kernel killed for want of memory.
func (g *group) oomKills() int64 {
	file := "memory.oom_control"
	if g.dirs[ctlMemory].V2 {
		file = "memory.events"
	}
	n, err := g.getKey(ctlMemory, file, "oom_kill")
	if err != nil {
		return 0
	}
	return n
}

func (g *group) memoryUsed() (int64, error) {
	if g.dirs[ctlMemory].V2 {
		return g.getInt(ctlMemory, "memory.current")
	}
	return g.getInt(ctlMemory, "memory.usage_in_bytes")
}

func (g *group) cpuUsed() (time.Duration, error) {
	if g.dirs[ctlCPU].V2 {
		us, err := g.getKey(ctlCPU, "cpu.stat", "usage_usec")
		return time.Duration(us) * time.Microsecond, err
	}
	controller := ctlCPU
	if _, ok := g.dirs["cpuacct"]; ok {
		controller = "cpuacct"
	}
	ns, err := g.getInt(controller, "cpuacct.usage")
	return time.Duration(ns), err
}

func (g *group) tasks() (int64, error) { return g.getInt(ctlPIDs, "pids.current") }

// enter arranges that the next child of thread tid starts inside g, and
// returns how to undo what concerns the thread.
func (g *group) enter(tid int, attr *syscall.SysProcAttr) (leave func() error, err error) {
	var undo []func() error
	leave = func() (err error) {
		for _, f := range undo {
			err = errors.Join(err, f())
		}
		return err
	}
	if g == nil {
		return leave, nil
	}
	for _, p := range g.uniq {
		if p.V2 {
			fd, err := unix.Open(p.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return leave, errors.Join(fmt.Errorf("open cgroup %s: %w", p.Dir, err), leave())
			}
			undo = append(undo, func() error { return unix.Close(fd) })
			attr.UseCgroupFD, attr.CgroupFD = true, fd
			continue
		}
		if err := moveThread(tid, p.Dir); err != nil {
			return leave, errors.Join(err, leave())
		}
		undo = append(undo, func() error { return moveThread(tid, filepath.Dir(p.Dir)) })
	}
	return leave, nil
}

// moveThread puts one thread into a v1 cgroup.
func moveThread(tid int, dir string) error {
	if err := writeControl(filepath.Join(dir, "tasks"), strconv.Itoa(tid)); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// pidsIn lists the processes of a cgroup; one that is gone has none.
func pidsIn(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for _, f := range bytes.Fields(b) {
		pid, err := strconv.Atoi(string(f))
		if err != nil {
			return nil, fmt.Errorf("cgroup.procs: %w", err)
		}
		out = append(out, pid)
	}
	return out, nil
}

// removeCgroup kills whatever is in a cgroup and removes it. It returns nil
// only when the directory is gone.
func removeCgroup(ctx context.Context, p place) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(p.Dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			return fmt.Errorf("remove cgroup %s: %w", p.Dir, err)
		}
		// Kernels before 5.14, and v1, do not kill a cgroup as a whole.
		whole := p.V2 && writeControl(filepath.Join(p.Dir, "cgroup.kill"), "1") == nil
		pids, err := pidsIn(p.Dir)
		if err != nil {
			return err
		}
		if !whole {
			if err := killIn(p.Dir, pids); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cgroup %s still has processes %v: %w", p.Dir, pids, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// killBatch bounds the descriptors that killIn has open.
const killBatch = 64

// killIn kills those of pids that are in a cgroup. A number may have come to
// name another process since it was read, so membership is read again with the
// processes pinned.
func killIn(dir string, pids []int) error {
	for batch := range slices.Chunk(pids, killBatch) {
		pinned := make(map[int]int, len(batch))
		for _, pid := range batch {
			// 0 stands for a process of another pid namespace, and is refused.
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				pinned[pid] = fd
			}
		}
		members, err := pidsIn(dir)
		for _, pid := range members {
			if fd, ok := pinned[pid]; ok {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
		}
		for _, fd := range pinned {
			unix.Close(fd)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove gives all cgroups of the group back.
func (g *group) remove(ctx context.Context) (err error) {
	if g == nil {
		return nil
	}
	for _, p := range g.uniq {
		err = errors.Join(err, removeCgroup(ctx, p))
	}
	return err
}
