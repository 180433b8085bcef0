package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of the checks of cgroups. A controller's check is named
// "cgroup " + controller.
const (
	CheckCgroup       = "cgroups"
	CheckCgroupCPU    = "cgroup cpu"
	CheckCgroupMemory = "cgroup memory"
	CheckCgroupPids   = "cgroup pids"
)

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	path        string
	v2          bool
	controllers []string // v1: from the mount options; v2: cgroup.controllers
}

func cgroupChecks() []driver.Check {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []driver.Check{unsure(CheckCgroup, errno(err), "")}
	}
	mounts := parseCgroupMounts(b)
	self, _ := os.ReadFile("/proc/self/cgroup")
	for i := range mounts {
		if mounts[i].v2 {
			c, _ := os.ReadFile(filepath.Join(mounts[i].path, "cgroup.controllers"))
			mounts[i].controllers = strings.Fields(string(c))
		}
	}
	out := []driver.Check{cgroupVersion(mounts)}
	for _, name := range []string{"cpu", "memory", "pids"} {
		out = append(out, controllerCheck(name, mounts, parseSelfCgroup(self)))
	}
	return out
}

// parseCgroupMounts reads /proc/self/mountinfo.
func parseCgroupMounts(b []byte) []cgroupMount {
	var out []cgroupMount
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		switch g[0] {
		case "cgroup2":
			out = append(out, cgroupMount{path: f[4], v2: true})
		case "cgroup":
			out = append(out, cgroupMount{path: f[4], controllers: strings.Split(g[2], ",")})
		}
	}
	return out
}

// parseSelfCgroup reads /proc/self/cgroup: controller to path; the v2 path
// has the key "".
func parseSelfCgroup(b []byte) map[string]string {
	out := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		f := strings.SplitN(sc.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			out[c] = f[2]
		}
	}
	return out
}

func cgroupVersion(mounts []cgroupMount) driver.Check {
	v1 := slices.ContainsFunc(mounts, func(m cgroupMount) bool { return !m.v2 })
	v2 := slices.ContainsFunc(mounts, func(m cgroupMount) bool { return m.v2 })
	switch {
	case v1 && v2:
		return yes(CheckCgroup, "version 1 with a version 2 mount beside it (hybrid)")
	case v1:
		return yes(CheckCgroup, "version 1")
	case v2:
		return yes(CheckCgroup, "version 2")
	}
	return no(CheckCgroup, "no hierarchy is mounted", "mount one: mount -t cgroup2 none /sys/fs/cgroup")
}

// controllerCheck looks for a place where this user may make a cgroup that
// has the controller.
func controllerCheck(name string, mounts []cgroupMount, self map[string]string) driver.Check {
	check := "cgroup " + name
	found := ""
	for _, m := range mounts {
		if !slices.Contains(m.controllers, name) {
			continue
		}
		own := self[name]
		if m.v2 {
			own = self[""]
		}
		for _, dir := range candidates(m.path, own) {
			if writable(dir) && (!m.v2 || delegates(dir, name)) {
				return yes(check, fmt.Sprintf("writable at %s (version %d)", dir, version(m)))
			}
		}
		found = m.path
	}
	if found == "" {
		return no(check, "no mounted hierarchy has the controller", "enable the controller in the kernel's configuration or on its command line")
	}
	return no(check, fmt.Sprintf("%s is there and this user may not make a cgroup with it", found),
		"run as root, or have the controller delegated: systemd-run --user --scope -p Delegate=yes, with cpu and memory delegated to user@.service")
}

func version(m cgroupMount) int {
	if m.v2 {
		return 2
	}
	return 1
}

// candidates are the own cgroup, its ancestors and the root, nearest first.
func candidates(mount, own string) []string {
	var out []string
	for p := filepath.Clean("/" + own); ; p = filepath.Dir(p) {
		out = append(out, filepath.Join(mount, p))
		if p == "/" {
			return out
		}
	}
}

func writable(dir string) bool {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// delegates reports whether children of a version 2 cgroup have the
// controller, or could be given it.
func delegates(dir, name string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err == nil && slices.Contains(strings.Fields(string(b)), name) {
		return true
	}
	return unix.Faccessat(unix.AT_FDCWD, filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK, unix.AT_EACCESS) == nil
}
