package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// clockTicks is USER_HZ, which Linux has fixed at 100 for user space.
const clockTicks = 100

// Stats counts what the sandbox uses, from its cgroups and, where it has none,
// from its processes.
func (i *Instance) Stats(ctx context.Context) (sandbox.Stats, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Stats{}, context.Cause(ctx)
	}
	select {
	case <-i.done:
		return sandbox.Stats{}, sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	default:
	}
	var s sandbox.Stats
	procs := i.processStats()
	s.OOMKills = i.cg.oomKills()
	var err error
	if s.CPUTime, err = i.cg.cpuUsed(); err != nil {
		s.CPUTime = procs.CPUTime
	}
	if s.MemoryBytes, err = i.cg.memoryUsed(); err != nil {
		s.MemoryBytes = procs.MemoryBytes
	}
	if s.Tasks, err = i.cg.tasks(); err != nil {
		s.Tasks = procs.Tasks
	}
	if i.store != nil {
		if info, err := i.store.Stat(); err == nil { // closed when it is gone
			s.DiskBytes = info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	for _, l := range i.limits {
		if l.Name == sandbox.LimitMemory && l.Enforced {
			s.MemoryLimit = i.memory
		}
	}
	return s, nil
}

// processStats adds up the sentry and the gofer. The stubs that run guest code
// share the sentry's memory; their CPU time counts when they have ended.
func (i *Instance) processStats() (s sandbox.Stats) {
	for _, cmd := range []*exec.Cmd{i.sentry, i.gofer} {
		if cmd == nil {
			continue
		}
		p, err := readProcess(cmd.Process.Pid)
		if err != nil {
			continue
		}
		s.CPUTime += p.CPUTime
		s.MemoryBytes += p.MemoryBytes
		s.Tasks += p.Tasks
	}
	return s
}

// readProcess reads /proc/PID/stat.
func readProcess(pid int) (s sandbox.Stats, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 22 {
		return s, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	num := func(n int) int64 { v, _ := strconv.ParseInt(f[n], 10, 64); return v }
	const utime, cstime, threads, rss = 11, 14, 17, 21
	for n := utime; n <= cstime; n++ {
		s.CPUTime += time.Duration(num(n)) * time.Second / clockTicks
	}
	s.Tasks = num(threads)
	s.MemoryBytes = num(rss) * int64(os.Getpagesize())
	return s, nil
}
