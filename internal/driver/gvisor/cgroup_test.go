package gvisor

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// hierarchy makes directories and files that look like a mounted hierarchy.
func hierarchy(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestFindPlace: where cgroups may be made on hosts of each kind.
func TestFindPlace(t *testing.T) {
	v1 := hierarchy(t, map[string]string{"box/cgroup.procs": "", "cgroup.procs": ""})
	v2 := hierarchy(t, map[string]string{
		"cgroup.procs": "", "cgroup.controllers": "cpu memory pids\n",
		"user/cgroup.procs": "", "user/session/cgroup.procs": "",
	})
	bare := hierarchy(t, map[string]string{"cgroup.procs": "", "cgroup.controllers": "\n"})
	for _, c := range []struct {
		name   string
		mounts []cgroupMount
		own    map[string]string
		want   place
		why    string
	}{
		{"v1", []cgroupMount{{root: "/", point: v1, controllers: []string{"rw", "memory"}}},
			map[string]string{"memory": "/box"}, place{Dir: v1 + "/box"}, ""},
		{"v1 in a container", []cgroupMount{{root: "/docker/x", point: v1, controllers: []string{"memory"}}},
			map[string]string{"memory": "/docker/x/box"}, place{Dir: v1 + "/box"}, ""},
		{"hybrid", []cgroupMount{{root: "/", point: bare, v2: true}, {root: "/", point: v1, controllers: []string{"memory"}}},
			map[string]string{"memory": "/", "": "/"}, place{Dir: v1}, ""},
		{"v2 from a session", []cgroupMount{{root: "/", point: v2, v2: true}},
			map[string]string{"": "/user/session"}, place{Dir: v2, V2: true}, ""},
		{"v2 without the controller", []cgroupMount{{root: "/", point: bare, v2: true}},
			map[string]string{"": "/"}, place{}, "does not offer"},
		{"v2 of somebody else", []cgroupMount{{root: "/", point: v2, v2: true}},
			map[string]string{"": "/nobody"}, place{}, "no such file"},
		{"none", nil, nil, place{}, "no cgroup hierarchy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, why := findPlace("memory", c.mounts, c.own)
			if got != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("%+v, %q; want %+v, %q", got, why, c.want, c.why)
			}
		})
	}
}

// TestGroupV2 writes limits into files that look like cgroup v2's.
func TestGroupV2(t *testing.T) {
	root := hierarchy(t, map[string]string{"cgroup.procs": "", "cgroup.subtree_control": "cpu memory\n", "cgroup.controllers": "cpu memory pids\n"})
	id := sandbox.NewID()
	h := &cgroupHost{places: map[string]place{}, why: map[string]string{}}
	for _, c := range controllers {
		h.places[c] = place{Dir: root, V2: true}
	}
	dir := filepath.Join(root, "belljar-"+string(id))
	files := map[string]string{
		"cpu.max": "", "memory.max": "", "memory.swap.max": "", "memory.oom.group": "", "pids.max": "",
		"memory.events": "low 0\noom 3\noom_kill 2\n", "memory.current": "4096\n", "pids.current": "7\n", "cpu.stat": "usage_usec 1500\n",
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g, why := h.make(id)
	if len(why) > 0 || len(g.uniq) != 1 {
		t.Fatalf("%+v, %v", g, why)
	}
	if got, _ := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); !strings.HasPrefix(string(got), "+") { // a plain file keeps the last write
		t.Errorf("subtree_control %q: a controller that was missing is not enabled", got)
	}
	req := &driver.CreateRequest{Limits: sandbox.Limits{CPUs: 1.5, MemoryBytes: 1 << 30, Processes: 100, DiskBytes: 1, OpenFiles: 1}}
	limits, err := applyLimits(g, req, why)
	if err != nil || slices.ContainsFunc(limits, func(l sandbox.LimitStatus) bool { return !l.Enforced }) {
		t.Errorf("%+v, %v", limits, err)
	}
	got := map[string]string{}
	for _, name := range []string{"cpu.max", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max"} {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		got[name] = string(b)
	}
	want := map[string]string{"cpu.max": "150000 100000", "memory.max": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "1424"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	mem, _ := g.memoryUsed()
	tasks, _ := g.tasks()
	cpu, _ := g.cpuUsed()
	if g.oomKills() != 2 || mem != 4096 || tasks != 7 || cpu.Microseconds() != 1500 {
		t.Errorf("counts: %d kills, %d bytes, %d tasks, %v", g.oomKills(), mem, tasks, cpu)
	}
	var attr syscall.SysProcAttr
	leave, err := g.enter(0, &attr)
	if err != nil || !attr.UseCgroupFD {
		t.Errorf("enter: %v, %+v", err, attr)
	}
	if err := leave(); err != nil {
		t.Error(err)
	}
}

// TestCgroupKill: a process is killed only if it still is in the cgroup when
// its number cannot come to name another any more.
func TestCgroupKill(t *testing.T) {
	sleeper := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	in, left := sleeper(), sleeper()
	dir := hierarchy(t, map[string]string{"cgroup.procs": "0\n" + itoa(in.Process.Pid) + "\n"})
	if err := killIn(dir, []int{0, left.Process.Pid, in.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	if err := in.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the member ended with %v", err)
	}
	if n, err := syscall.Wait4(left.Process.Pid, nil, syscall.WNOHANG, nil); n != 0 || err != nil {
		t.Errorf("the one that had left was killed: %d, %v", n, err)
	}
}
