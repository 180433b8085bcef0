package drivertest

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
)

// state is what this process holds of the host.
type state struct {
	goroutines int
	fds        int
	children   int
	mounts     []string
}

func look(t testing.TB) state {
	t.Helper()
	return state{
		goroutines: runtime.NumGoroutine(),
		fds:        len(list(t, "/proc/self/fd")),
		children:   descendants(t),
		mounts:     mounts(t),
	}
}

func list(t testing.TB, dir string) []os.DirEntry {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mounts(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, f[4])
		}
	}
	slices.Sort(out)
	return out
}

// descendants counts the processes beneath this one, dead ones that nobody
// has waited for included.
func descendants(t testing.TB) int {
	parent := map[int]int{}
	for _, e := range list(t, "/proc") {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if ppid, err := strconv.Atoi(f[1]); err == nil {
			parent[pid] = ppid
		}
	}
	n := 0
	for pid := range parent {
		for p := parent[pid]; p > 1; p = parent[p] {
			if p == os.Getpid() {
				n++
				break
			}
		}
	}
	return n
}

// same waits until no more is held than before and nothing of the suite's
// instances is left.
func (before state) same(s *suite) {
	s.Helper()
	for _, h := range s.handles {
		s.gone(h)
	}
	after := look(s)
	ok := func() bool {
		after = look(s)
		return after.goroutines <= before.goroutines && after.fds <= before.fds &&
			after.children <= before.children && slices.Equal(after.mounts, before.mounts)
	}
	if !poll(ok, 10*time.Second) {
		s.Errorf("left: goroutines %d -> %d, descriptors %d -> %d, children %d -> %d, mounts %d -> %d",
			before.goroutines, after.goroutines, before.fds, after.fds,
			before.children, after.children, len(before.mounts), len(after.mounts))
		if after.goroutines > before.goroutines {
			buf := make([]byte, 1<<20)
			s.Logf("%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// gone checks that nothing of an instance is on the host.
func (s *suite) gone(h driver.Handle) {
	s.Helper()
	if pids := naming(string(h.ID)); len(pids) > 0 {
		s.Errorf("processes of %s are left: %v", h.ID, pids)
	}
	if s.f.Leftovers == nil {
		return
	}
	if left := s.f.Leftovers(h); len(left) > 0 {
		s.Errorf("left of %s: %v", h.ID, left)
	}
}

// naming lists other processes that have id in command line, environment or
// cgroup.
func naming(id string) []string {
	var out []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		for _, file := range []string{"cmdline", "environ", "cgroup"} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil && bytes.Contains(b, []byte(id)) {
				out = append(out, filepath.Base(dir)+" ("+file+")")
				break
			}
		}
	}
	return out
}

// poll asks until the answer is yes or the time is over.
func poll(ok func() bool, within time.Duration) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			return ok()
		}
	}
	return true
}
