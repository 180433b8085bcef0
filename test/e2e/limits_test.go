package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

const python = "/usr/bin/python3"

// needPython skips where the host template has no Python.
func needPython(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(python); err != nil {
		t.Skipf("probe: python3: %v", err)
	}
}

// TestMemoryLimit: taking too much memory ends with 137 and a message that
// says so and how to raise the limit, by run, by exec and in the result.
func TestMemoryLimit(t *testing.T) {
	needPython(t)
	e := setup(t)
	b := create(t, e, "work", "--memory", "128m")
	const eat = "x = []\nwhile True: x.append(bytearray(b'x') * (8 << 20))"
	for _, how := range [][]string{{"run", "--memory", "128m"}, {"exec", b.name}} {
		r := want(t, e.Belljar(append(how, "--", python, "-c", eat)...), 137)
		contains(t, r.Stderr, "belljar: the sandbox used more memory than its limit of 128MiB and was killed\n", "hint: allow more memory, for instance --memory 256MiB\n")
	}
	var got ended
	decode(t, want(t, e.Belljar("run", "-o", "json", "--memory", "128m", "--", python, "-c", eat), 137).Stdout, &got)
	if !got.Exit.OOM || got.Exit.Status != 137 {
		t.Errorf("exit = %+v", got.Exit)
	}
	// A child that is killed for want of memory is mentioned.
	r := e.Belljar("run", "--memory", "128m", "--", "sh", "-c", python+` -c "$0"; exit 3`, eat)
	if r.Code != 3 && r.Code != 137 {
		t.Errorf("exit code %d", r.Code)
	}
	contains(t, r.Stderr, "memory", "--memory")
}

func hit(got *ended, name sandbox.LimitName) bool {
	for _, h := range got.Hits {
		if h.Limit == name {
			return true
		}
	}
	return false
}

// TestProcessLimit: more processes than allowed are refused with EAGAIN; the
// sandbox lives on, and the event says so.
func TestProcessLimit(t *testing.T) {
	needPython(t)
	e := setup(t)
	const fork = `
import os, sys, errno, signal
pids = []
try:
    while len(pids) < 500:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
except OSError as err:
    print(errno.errorcode[err.errno], len(pids), flush=True)
signal.pause()
`
	for _, user := range []string{"user", "root"} {
		var got ended
		r := want(t, e.Belljar("run", "-o", "json", "--pids", "32", "--timeout", "3s", "-u", user, "--", python, "-c", fork), 124)
		decode(t, r.Stdout, &got)
		f := strings.Fields(got.Stdout.Head)
		if len(f) != 2 || f[0] != "EAGAIN" {
			t.Errorf("%s: %q, want EAGAIN after about 32", user, got.Stdout.Head)
			continue
		}
		// gVisor's pids controller lets a few through that ask at once.
		if n, _ := strconv.Atoi(f[1]); n < 16 || n > 64 {
			t.Errorf("%s: %d processes were allowed", user, n)
		}
		if !hit(&got, sandbox.LimitProcesses) {
			t.Errorf("%s: no event of the limit in %+v", user, got.Hits)
		}
	}
}

// TestDiskLimit: writing more than allowed is refused with ENOSPC, wherever it
// is written to.
func TestDiskLimit(t *testing.T) {
	e := setup(t)
	for _, path := range []string{"/home/user/x", "/var/tmp/x"} {
		var got ended
		r := want(t, e.Belljar("run", "-o", "json", "--disk", "16m", "-u", "root", "--", "sh", "-c",
			"mkdir -p /home/user /var/tmp; dd if=/dev/zero of="+path+" bs=1M count=64 2>&1; stat -c %s "+path), 0)
		decode(t, r.Stdout, &got)
		contains(t, got.Stdout.Head, "No space left on device")
		lines := strings.Fields(got.Stdout.Head)
		if n, err := strconv.Atoi(lines[len(lines)-1]); err != nil || n > 17<<20 || n < 8<<20 {
			t.Errorf("%s: %d bytes were written (%v)", path, n, err)
		}
	}
}

// TestOpenFilesLimit: more open files than allowed are refused with EMFILE.
func TestOpenFilesLimit(t *testing.T) {
	needPython(t)
	e := setup(t)
	r := want(t, e.Belljar("run", "--open-files", "64", "--", python, "-c", `
import errno
f = []
try:
    while True: f.append(open("/dev/null"))
except OSError as err: print(errno.errorcode[err.errno], len(f) <= 64)
`), 0)
	if r.Stdout != "EMFILE True\n" {
		t.Errorf("%q", r.Stdout)
	}
}

// TestOutputLimit: head and tail are kept with counts, the whole is in a named
// file.
func TestOutputLimit(t *testing.T) {
	e := setup(t)
	var got ended
	r := want(t, e.Belljar("run", "-o", "json", "--output-limit", "8k", "--", "sh", "-c", "seq 1 200000; echo few >&2"), 0)
	decode(t, r.Stdout, &got)
	o := got.Stdout
	if !strings.HasPrefix(o.Head, "1\n2\n") || !strings.HasSuffix(o.Tail, "200000\n") || len(o.Head)+len(o.Tail) > 8<<10 {
		t.Errorf("head %q, tail %q", clip(o.Head), clip(o.Tail))
	}
	if int64(len(o.Head)+len(o.Tail))+o.Omitted != o.Bytes || o.Lost != 0 {
		t.Errorf("counts: %d, %d, omitted %d of %d, lost %d", len(o.Head), len(o.Tail), o.Omitted, o.Bytes, o.Lost)
	}
	b, err := os.ReadFile(o.File)
	if err != nil || int64(len(b)) != o.Bytes || !strings.HasSuffix(string(b), "199999\n200000\n") {
		t.Errorf("the file has %d of %d bytes, %v", len(b), o.Bytes, err)
	}
	os.Remove(o.File)
	if got.Stderr.Head != "few\n" || got.Stderr.File != "" {
		t.Errorf("stderr: %+v", got.Stderr)
	}
}

// TestDetachedOutputLimit: of a detached command's output beginning and end
// are kept, and how much is missing is told.
func TestDetachedOutputLimit(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	id := strings.TrimSpace(want(t, b.exec("-d", "--", "seq", "1", "3000000"), 0).Stdout)
	want(t, e.Belljar("logs", "-f", "--process", id, b.name), 0) // follows to the end
	r := want(t, e.Belljar("logs", "--process", id, b.name), 0)
	if n := len(r.Stdout); n > 12<<20 || n < 1<<20 {
		t.Errorf("%d bytes were kept", n)
	}
	if !strings.HasPrefix(r.Stdout, "1\n2\n") || !strings.HasSuffix(r.Stdout, "\n3000000\n") {
		t.Errorf("beginning or end is missing: %q", clip(r.Stdout))
	}
	contains(t, r.Stderr, "was not kept")
}

// TestCPULimit: half a core is half a core, as the host counts it.
func TestCPULimit(t *testing.T) {
	needPython(t)
	e := setup(t)
	b := create(t, e, "work", "--cpus", "0.5")
	used := func() time.Duration {
		var got []struct {
			Stats struct {
				CPUTime time.Duration `json:"cpu_time"`
			}
		}
		decode(t, want(t, e.Belljar("stats", "-o", "json", b.name), 0).Stdout, &got)
		return got[0].Stats.CPUTime
	}
	before, began := used(), time.Now()
	want(t, b.exec("--", python, "-c", `
import threading, time
end = time.time() + 4
def spin():
    while time.time() < end: pass
for _ in range(4): threading.Thread(target=spin).start()
`), 0)
	cpu, wall := used()-before, time.Since(began)
	if share := float64(cpu) / float64(wall); share > 0.65 || share < 0.1 {
		t.Errorf("%v of CPU time in %v: a share of %.2f, want at most 0.5 and a little", cpu, wall, share)
	}
}

// TestLimitsSeenInside: processors and memory that programs count.
func TestLimitsSeenInside(t *testing.T) {
	e := setup(t)
	for cpus, seen := range map[string]string{"0.5": "2", "2": "2"} {
		r := want(t, e.Belljar("run", "--cpus", cpus, "--memory", "256m", "--", "sh", "-c", `nproc; awk '/MemTotal/ {print $2}' /proc/meminfo`), 0)
		if r.Stdout != seen+"\n262144\n" {
			t.Errorf("--cpus %s: %q", cpus, r.Stdout)
		}
	}
}

// TestInspectTellsLimits: each limit with whether it is enforced and by what.
func TestInspectTellsLimits(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work", "--memory", "200m", "--pids", "100")
	var got sandbox.Sandbox
	decode(t, want(t, e.Belljar("inspect", b.name), 0).Stdout, &got)
	names := map[sandbox.LimitName]sandbox.LimitStatus{}
	for _, l := range got.Limits {
		names[l.Name] = l
	}
	for _, n := range []sandbox.LimitName{sandbox.LimitCPU, sandbox.LimitMemory, sandbox.LimitProcesses, sandbox.LimitDisk, sandbox.LimitOpenFiles, sandbox.LimitOutput} {
		l, ok := names[n]
		if !ok || l.Value == "" || l.Enforced && l.By == "" || !l.Enforced && l.Reason == "" {
			t.Errorf("%s: %+v", n, l)
		}
	}
	if !names[sandbox.LimitMemory].Explicit || names[sandbox.LimitDisk].Explicit {
		t.Errorf("explicit: %+v", got.Limits)
	}
	if got.CPUsSeen < 2 {
		t.Errorf("cpus seen: %d", got.CPUsSeen)
	}
}
