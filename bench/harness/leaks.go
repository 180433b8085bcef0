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

// Holdings is what an installation of Belljar holds on the host, as the host
// itself tells: nothing here is asked of the daemon.
type Holdings struct {
	Processes  map[string]int // by name, of those that run one of our programs, zombies included
	Mounts     int            // in the machine's own mount namespace
	Cgroups    map[string]int // directories of ours, by hierarchy
	Namespaces int            // different namespaces of all processes
	Files      map[string]int // files and directories, by root
}

// Watched says where to look.
type Watched struct {
	Programs string   // directory of the three programs
	Roots    []string // state and runtime directories
}

// Take counts what is held now.
func (w Watched) Take() (Holdings, error) {
	h := Holdings{Processes: map[string]int{}, Cgroups: map[string]int{}, Files: map[string]int{}}
	procs, err := Processes()
	if err != nil {
		return h, err
	}
	for _, p := range procs {
		// A sandbox's processes run our engine under other names; the file tells.
		if strings.HasPrefix(p.Exe, w.Programs+"/") || strings.HasPrefix(p.Name, "belljar") {
			h.Processes[p.Name]++
		}
	}
	h.Namespaces = namespaces(procs)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return h, err
	}
	h.Mounts = strings.Count(string(mounts), "\n")
	for _, root := range w.Roots {
		h.Files[root] = countTree(root, func(string) bool { return true })
	}
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, dir := range append(hierarchies, "/sys/fs/cgroup") {
		n := countTree(dir, func(name string) bool { return strings.Contains(name, "belljar") })
		if n > 0 {
			h.Cgroups[dir] = n
		}
	}
	return h, nil
}

func namespaces(procs []Process) int {
	seen := map[string]bool{}
	for _, p := range procs {
		dir := fmt.Sprintf("/proc/%d/ns", p.PID)
		for _, kind := range []string{"mnt", "net", "pid", "user", "ipc", "uts"} {
			if id, err := os.Readlink(filepath.Join(dir, kind)); err == nil {
				seen[id] = true
			}
		}
	}
	return len(seen)
}

// countTree counts what lies beneath root and has a path that counts.
func countTree(root string, counts func(rel string) bool) int {
	n := 0
	filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		if strings.HasPrefix(root, "/sys/fs/cgroup") && !d.IsDir() {
			return nil
		}
		if rel, err := filepath.Rel(root, p); err == nil && rel != "." && counts(rel) {
			n++
		}
		return nil
	})
	return n
}

// Since lists what h holds more than before, one sentence each; empty when
// nothing is left.
func (h Holdings) Since(before Holdings) []string {
	var out []string
	more := func(what string, now, then int) {
		if now > then {
			out = append(out, fmt.Sprintf("%s: %d, were %d", what, now, then))
		}
	}
	moreOf := func(what string, now, then map[string]int) {
		for _, k := range slices.Sorted(maps.Keys(now)) {
			more(what+" "+k, now[k], then[k])
		}
	}
	moreOf("processes", h.Processes, before.Processes)
	moreOf("cgroups in", h.Cgroups, before.Cgroups)
	moreOf("files in", h.Files, before.Files)
	more("mounts", h.Mounts, before.Mounts)
	more("namespaces", h.Namespaces, before.Namespaces)
	return out
}
