package gvisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// The controllers that limits need.
const (
	ctlCPU    = "cpu"
	ctlMemory = "memory"
	ctlPIDs   = "pids"
)

var controllers = []string{ctlCPU, ctlMemory, ctlPIDs}

// cgroupHost tells where this process may make cgroups, per controller. A
// host may have some controllers on v1 and others on v2.
type cgroupHost struct {
	places map[string]place
	why    map[string]string // reason for each controller that has no place
	extra  []place           // v1 hierarchies that only count
}

// place is a directory in which a child cgroup with one controller may be made.
type place struct {
	Dir string
	V2  bool
}

// group is the cgroups of one sandbox; on v2 they are all the same directory.
// A nil group limits nothing.
type group struct {
	dirs map[string]place // controller: its own cgroup
	uniq []place
}

// findCgroups looks up the caller's own cgroups and where it may make others.
func findCgroups() (*cgroupHost, error) {
	mounts, err := readCgroupMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := readOwnCgroups("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	h := &cgroupHost{places: map[string]place{}, why: map[string]string{}}
	for _, c := range controllers {
		p, why := findPlace(c, mounts, own)
		if why != "" {
			h.why[c] = why
		} else {
			h.places[c] = p
		}
	}
	if p, why := findPlace("cpuacct", mounts, own); why == "" && !p.V2 && p != h.places[ctlCPU] {
		h.extra = append(h.extra, p)
	}
	return h, nil
}

func findPlace(controller string, mounts []cgroupMount, own map[string]string) (place, string) {
	for _, m := range mounts {
		if m.v2 || !slices.Contains(m.controllers, controller) {
			continue
		}
		dir := m.resolve(own[controller])
		if err := writable(dir); err != nil {
			return place{}, fmt.Sprintf("cgroup v1 %s: %v", dir, err)
		}
		return place{Dir: dir}, ""
	}
	for _, m := range mounts {
		if !m.v2 {
			continue
		}
		dir := m.resolve(own[""])
		if err := writable(dir); err != nil {
			return place{}, fmt.Sprintf("cgroup v2 %s: %v", dir, err)
		}
		// The highest directory that is ours: below it no process of ours
		// stands in the way of enabling controllers.
		for dir != m.point && writable(filepath.Dir(dir)) == nil {
			dir = filepath.Dir(dir)
		}
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return place{}, fmt.Sprintf("cgroup v2: %v", err)
		}
		if !slices.Contains(strings.Fields(string(b)), controller) {
			return place{}, fmt.Sprintf("cgroup v2 %s does not offer the %s controller", dir, controller)
		}
		return place{Dir: dir, V2: true}, ""
	}
	return place{}, "no cgroup hierarchy has the " + controller + " controller"
}

func writable(dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, filepath.Join(dir, "cgroup.procs"), unix.W_OK, unix.AT_EACCESS); err != nil {
		return err
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	root, point string
	v2          bool
	controllers []string
}

// resolve returns where the cgroup path p (as in /proc/self/cgroup) is mounted.
func (m cgroupMount) resolve(p string) string {
	if m.root != "/" {
		p = strings.TrimPrefix(p, m.root)
	}
	return filepath.Join(m.point, p)
}

func readCgroupMounts(path string) ([]cgroupMount, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []cgroupMount
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != "cgroup" && tail[0] != "cgroup2" {
			continue
		}
		out = append(out, cgroupMount{
			root: head[3], point: head[4], v2: tail[0] == "cgroup2",
			controllers: strings.Split(tail[2], ","),
		})
	}
	return out, nil
}

// readOwnCgroups returns the caller's cgroup per v1 controller, and "" for v2.
func readOwnCgroups(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		parts := strings.SplitN(sc.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			out[c] = parts[2]
		}
	}
	return out, nil
}

// dirs names the cgroups that a sandbox would have, without touching any.
func (h *cgroupHost) dirs(id sandbox.ID) map[string]place {
	out := map[string]place{}
	for c, p := range h.places {
		out[c] = place{Dir: filepath.Join(p.Dir, "belljar-"+string(id)), V2: p.V2}
	}
	for _, p := range h.extra {
		out["cpuacct"] = place{Dir: filepath.Join(p.Dir, "belljar-"+string(id))}
	}
	return out
}

func uniquePlaces(dirs map[string]place) []place {
	var out []place
	for _, p := range dirs {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b place) int { return strings.Compare(a.Dir, b.Dir) })
	return out
}

// make creates the cgroups of a sandbox. A controller whose cgroup cannot be
// made is left out and explained in why.
func (h *cgroupHost) make(id sandbox.ID) (*group, map[string]string) {
	why := map[string]string{}
	for c, w := range h.why {
		why[c] = w
	}
	g := &group{dirs: map[string]place{}}
	for c, p := range h.dirs(id) {
		if err := makeCgroup(c, p); err != nil {
			why[c] = err.Error()
			continue
		}
		g.dirs[c] = p
	}
	g.uniq = uniquePlaces(g.dirs)
	return g, why
}

func makeCgroup(controller string, p place) error {
	if p.V2 {
		if err := enableController(filepath.Dir(p.Dir), controller); err != nil {
			return err
		}
	}
	if err := os.Mkdir(p.Dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// enableController makes children of dir have the controller.
func enableController(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(b)), controller) {
		return nil
	}
	return writeControl(file, "+"+controller)
}
