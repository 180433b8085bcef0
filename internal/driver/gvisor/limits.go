package gvisor

import (
	"fmt"
	"math"
	"strconv"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// cpusSeen is the number of processors inside: gVisor's kernel shows at least
// two, because programs turn off locks that they need when they see one.
func cpusSeen(cpus float64) int { return max(2, int(math.Ceil(cpus))) }

// hostTasks bounds the host's tasks of a sandbox: what the sentry and systrap
// need besides about three for each of the guest's processes. When it is hit
// the sentry dies, so this is a wall behind the limit that holds inside.
func hostTasks(processes int64) int64 { return 4*processes + 1024 }

// applyLimits puts limits into force and tells which are. An explicit one that
// cannot be is an error.
func applyLimits(g *group, req *driver.CreateRequest, why map[string]string) ([]sandbox.LimitStatus, error) {
	l, x := req.Limits, req.Explicit
	cpu := sandbox.LimitStatus{
		Name: sandbox.LimitCPU, Value: strconv.FormatFloat(l.CPUs, 'g', -1, 64), Explicit: x.CPUs,
		Seen: strconv.Itoa(cpusSeen(l.CPUs)),
	}
	enforce(&cpu, why[ctlCPU], func() (string, error) { return g.setCPU(l.CPUs) })

	mem := sandbox.LimitStatus{Name: sandbox.LimitMemory, Value: bytesText(l.MemoryBytes), Explicit: x.Memory}
	enforce(&mem, why[ctlMemory], func() (string, error) { return g.setMemory(l.MemoryBytes) })

	if _, ok := g.dirs[ctlPIDs]; ok {
		if err := g.setTasks(hostTasks(l.Processes)); err != nil {
			return nil, fmt.Errorf("limit host tasks: %w", err)
		}
	}
	all := []sandbox.LimitStatus{
		cpu, mem,
		{
			Name: sandbox.LimitProcesses, Value: strconv.FormatInt(l.Processes, 10), Explicit: x.Processes,
			Enforced: true, By: "the sandbox's own kernel (RLIMIT_NPROC, belljar-guest)",
		},
		{
			Name: sandbox.LimitDisk, Value: bytesText(l.DiskBytes), Explicit: x.Disk,
			Enforced: true, By: "the size of the sandbox's upper layer",
		},
		{
			Name: sandbox.LimitOpenFiles, Value: strconv.FormatInt(l.OpenFiles, 10), Explicit: x.OpenFiles,
			Enforced: true, By: "RLIMIT_NOFILE in the sandbox's own kernel",
		},
	}
	for _, s := range all {
		if s.Explicit && !s.Enforced {
			return all, sandbox.Errorf(sandbox.Unsupported, "this host cannot enforce the limit: %s", s.Reason).
				WithField(limitField(s.Name), s.Value).
				WithHint("run as root, or inside a delegated cgroup v2 (for instance `systemd-run --user --scope`), or leave the limit out")
		}
	}
	return all, nil
}

func enforce(s *sandbox.LimitStatus, why string, set func() (string, error)) {
	if why == "" {
		by, err := set()
		if err == nil {
			s.Enforced, s.By = true, by
			return
		}
		why = err.Error()
	}
	s.Reason = why
}

func limitField(n sandbox.LimitName) string {
	if n == sandbox.LimitCPU {
		return "cpus"
	}
	return string(n)
}

// bytesText writes n for people, exactly.
func bytesText(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
