package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// recordName is the file in CreateRequest.Dir that names a sandbox's processes.
const recordName = "processes.json"

// record names the roles of a sandbox by what none of them can change. It is
// written when they have been started and before guest code can run: until then
// nobody has had a chance to give them another command line, and Reap finds
// them by that. It is not synced, as it outlives a keeper and not the machine,
// whose next boot it names another.
type record struct {
	Boot  string    `json:"boot"`
	Roles []process `json:"roles"`
}

// process is one process of this host, told from a later one of its number by
// when it began, in ticks since boot.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// identify reads when a process began.
func identify(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// The name, in parentheses, may hold anything.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(fields))
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return process{PID: pid, Start: start}, err
}

// pin returns a descriptor of the process, or -1 when it is gone.
func (p process) pin() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ESRCH || err == unix.EINVAL { // the latter: now the number of a thread
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("pidfd of %d: %w", p.PID, err)
	}
	// Whoever had the number when it was pinned had it no later than the one
	// that is looked at now.
	now, err := identify(p.PID)
	if err == nil && now == p {
		return fd, nil
	}
	unix.Close(fd)
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	return -1, err
}

// bootID names the present boot of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b)), err
}

// record writes down which processes the sandbox has.
func (c *creation) record() error {
	var r record
	var err error
	if r.Boot, err = bootID(); err != nil {
		return err
	}
	for _, role := range []*role{c.sentry, c.gofer} {
		if role == nil {
			continue
		}
		p, err := identify(role.cmd.Process.Pid)
		if err != nil {
			return fmt.Errorf("look at a role: %w", err)
		}
		r.Roles = append(r.Roles, p)
	}
	return r.write(c.req.Dir)
}

// write makes the record appear as a whole.
func (r record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordName)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readRecord reads what the keeper wrote; ok is false where there is nothing
// that speaks of this boot. One that cannot be read is of a machine that went
// down as it was written.
func readRecord(dir string) (r record, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, os.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	boot, err := bootID()
	if err != nil {
		return r, false, err
	}
	if json.Unmarshal(b, &r) != nil || r.Boot != boot {
		return record{}, false, nil
	}
	return r, true, nil
}

// kill kills the recorded processes and waits until they have ended. Each is
// the first of a PID namespace, so the others in there have ended too.
func (r record) kill(ctx context.Context, id sandbox.ID) error {
	pinned := make(map[int]int, len(r.Roles)) // by number
	defer func() {
		for _, fd := range pinned {
			unix.Close(fd)
		}
	}()
	var pids []int
	for _, p := range r.Roles {
		fd, err := p.pin()
		if err != nil {
			return err
		}
		if fd < 0 {
			continue
		}
		pinned[p.PID] = fd
		pids = append(pids, p.PID)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill %d: %w", p.PID, err)
		}
	}
	err := until(ctx, func() ([]int, error) {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return hasEnded(pinned[pid]) })
		return pids, nil
	})
	if err != nil {
		return fmt.Errorf("sandbox %s, recorded: %w", id, err)
	}
	return nil
}

// hasEnded reports whether the process of a pidfd has no thread any more.
func hasEnded(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
