package gvisor

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestCPULimit: a program that would use two processors gets what was asked
// for. The host counts; how busy it is does not matter.
func TestCPULimit(t *testing.T) {
	d := newDriver(t)
	if why := d.cgroups.why[ctlCPU]; why != "" {
		t.Skip("probe: ", why)
	}
	req := request(t)
	req.Limits.CPUs, req.Explicit.CPUs = 0.2, true
	b := start(t, d, req)
	if b.i.CPUsSeen() != 2 {
		t.Errorf("%d processors are seen", b.i.CPUsSeen())
	}
	before, err := b.i.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.run("/bin/sh", "-c", "for i in 1 2; do timeout 2 sh -c 'while :; do :; done' & done; wait")
	took := time.Since(began)
	after, err := b.i.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used := (after.CPUTime - before.CPUTime).Seconds() / took.Seconds()
	if used > 0.25 { // one period's worth over, at most
		t.Errorf("%.2f processors were used, 0.2 allowed", used)
	}
}

// TestMemoryLimit: over the limit the sandbox ends, as out of memory, and says
// so.
func TestMemoryLimit(t *testing.T) {
	d := newDriver(t)
	if why := d.cgroups.why[ctlMemory]; why != "" {
		t.Skip("probe: ", why)
	}
	req := request(t)
	req.Limits.MemoryBytes, req.Explicit.Memory = 128<<20, true
	b := start(t, d, req)
	if _, err := b.tryAsk(map[string]any{"op": "alloc", "n": 512 << 20}); err == nil {
		t.Error("512 MiB fit into 128")
	}
	e, err := b.i.Wait(t.Context())
	if err != nil || !e.OOM || e.Status() != 137 || !strings.Contains(e.Reason, "memory limit") {
		t.Errorf("exit %+v, %v", e, err)
	}
}

// TestExplicitLimitRefused: without cgroups, a limit that was asked for is an
// error that names it, and one that was not is reported as not in force.
func TestExplicitLimitRefused(t *testing.T) {
	d := newDriver(t)
	d.cgroups = &cgroupHost{places: map[string]place{}, why: map[string]string{
		ctlCPU: "not today", ctlMemory: "not today", ctlPIDs: "not today",
	}}
	req := request(t)
	req.Explicit.Memory = true
	_, err := d.Create(t.Context(), req)
	if e := sandbox.AsError(err); sandbox.KindOf(err) != sandbox.Unsupported || e.Field != "memory" || e.Hint == "" {
		t.Errorf("error %v", err)
	}
	b := start(t, d, request(t))
	for _, l := range b.i.Limits() {
		byCgroup := l.Name == sandbox.LimitCPU || l.Name == sandbox.LimitMemory
		if l.Enforced == byCgroup || byCgroup && l.Reason != "not today" {
			t.Errorf("%+v", l)
		}
	}
}

// TestGuestCannotBeRun: errors of what Create is given name it.
func TestGuestMissing(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	req.Guest = "/nonexistent/guest"
	_, err := d.Create(t.Context(), req)
	if e := sandbox.AsError(err); e == nil || e.Field != "guest" {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, d, req)
	req = request(t)
	req.Root.Path = "/nonexistent"
	if _, err = d.Create(t.Context(), req); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, d, req)
	if left, err := os.ReadDir("/sys"); err != nil || len(left) == 0 {
		t.Errorf("/sys of the caller: %v, %v", left, err)
	}
}
