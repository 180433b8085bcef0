package harness

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Holdings names what an installation of Belljar holds on the host, as the
// host itself tells: nothing here is asked of the daemon. Cgroups, namespaces
// and mounts are the whole machine's, since a leaked one belongs to nobody;
// that is why things are named and not counted: what others make and remove
// meanwhile drops out.
type Holdings map[string]bool

// Watched says where to look.
type Watched struct {
	Programs string   // directory of the three programs
	Roots    []string // state and runtime directories
}

// Take names what is held now.
func (w Watched) Take() (Holdings, error) {
	h := Holdings{}
	procs, err := Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		// A sandbox's processes run our engine under other names; the file tells.
		// Zombies have no file but the name of the thread that started them.
		if strings.HasPrefix(p.Exe, w.Programs+"/") || p.State == 'Z' && strings.HasPrefix(p.Name, "belljar") {
			h[fmt.Sprintf("process %d %s", p.PID, p.Name)] = true
		}
	}
	h.addNamespaces(procs)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		h["mount "+strings.TrimSpace(line)] = true
	}
	for _, root := range w.Roots {
		h.addTree("file", root, func(string, fs.DirEntry) bool { return true })
	}
	h.addTree("cgroup", "/sys/fs/cgroup", func(rel string, d fs.DirEntry) bool {
		return d.IsDir() && strings.Contains(rel, "belljar")
	})
	return h, nil
}

func (h Holdings) addNamespaces(procs []Process) {
	for _, p := range procs {
		dir := fmt.Sprintf("/proc/%d/ns", p.PID)
		for _, kind := range []string{"mnt", "net", "pid", "user", "ipc", "uts"} {
			if id, err := os.Readlink(filepath.Join(dir, kind)); err == nil {
				h["namespace "+id] = true
			}
		}
	}
}

// addTree names what lies beneath root and counts.
func (h Holdings) addTree(what, root string, counts func(rel string, d fs.DirEntry) bool) {
	// What is gone meanwhile is not held.
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if rel, err := filepath.Rel(root, p); err == nil && rel != "." && counts(rel, d) {
			h[what+" "+p] = true
		}
		return nil
	})
}

// Since returns what h holds and before did not.
func (h Holdings) Since(before Holdings) Holdings {
	out := maps.Clone(h)
	maps.DeleteFunc(out, func(name string, _ bool) bool { return before[name] })
	return out
}

// Still returns what h and later both hold.
func (h Holdings) Still(later Holdings) Holdings {
	out := maps.Clone(h)
	maps.DeleteFunc(out, func(name string, _ bool) bool { return !later[name] })
	return out
}

// Names lists everything, sorted.
func (h Holdings) Names() []string { return slices.Sorted(maps.Keys(h)) }
