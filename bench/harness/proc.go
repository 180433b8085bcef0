package harness

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one line of the host's process table.
type Process struct {
	PID, Parent int
	Name        string // comm
	State       byte
	Exe         string // "" when it cannot be read
	Cgroups     string
}

// Processes reads the host's process table. Processes that end meanwhile are
// left out.
func Processes() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func readProcess(pid int) (Process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Process{}, false
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Process{}, false
	}
	p := Process{PID: pid, Name: string(stat[open+1 : end])}
	if _, err := fmt.Sscanf(string(stat[end+1:]), " %c %d", &p.State, &p.Parent); err != nil {
		return Process{}, false
	}
	p.Exe, _ = os.Readlink(filepath.Join(dir, "exe"))
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	p.Cgroups = string(cgroups)
	return p, true
}

// Tree returns pid and all its descendants among procs.
func Tree(procs []Process, pid int) []Process {
	children := map[int][]Process{}
	var out []Process
	for _, p := range procs {
		children[p.Parent] = append(children[p.Parent], p)
		if p.PID == pid {
			out = append(out, p)
		}
	}
	for i := 0; i < len(out); i++ {
		out = append(out, children[out[i].PID]...)
	}
	return out
}

// PSS adds up the proportional set sizes of procs in bytes: memory that
// several processes share counts once in all.
func PSS(procs []Process) (int64, error) {
	var sum int64
	for _, p := range procs {
		n, err := rollup(p.PID)
		if os.IsNotExist(err) || p.State == 'Z' {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func rollup(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return fieldKiB(bufio.NewScanner(f), "Pss:")
}

// RSS is the resident set size of one process in bytes, 0 when it has ended.
func RSS(pid int) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	n, err := fieldKiB(bufio.NewScanner(f), "VmRSS:")
	if err != nil {
		return 0
	}
	return n
}

func fieldKiB(sc *bufio.Scanner, field string) (int64, error) {
	for sc.Scan() {
		rest, ok := strings.CutPrefix(sc.Text(), field)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		return n << 10, err
	}
	if err := sc.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("no field %s", field)
}

// Descriptors counts the open descriptors of a process, 0 when it has ended.
func Descriptors(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}
