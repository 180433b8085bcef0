package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Reap kills what is left of a sandbox and removes its cgroups.
func (d *Driver) Reap(ctx context.Context, h driver.Handle) error {
	if h.Boundary != sandbox.GVisor {
		return sandbox.Errorf(sandbox.Internal, "not a handle of this driver").WithField("boundary", string(h.Boundary))
	}
	if _, err := sandbox.ParseID(string(h.ID)); err != nil {
		return err
	}
	if _, seen := d.gone.LoadAndDelete(h.ID); seen {
		return nil // by Destroy, which knows its processes and need not search
	}
	var data handleData
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return fmt.Errorf("handle of %s: %w", h.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// The processes first: as long as there is a sentry it may start others.
	recorded, complete, err := readRecord(h.Dir)
	if err != nil {
		return fmt.Errorf("processes of %s: %w", h.ID, err)
	}
	if err := recorded.kill(ctx, h.ID); err != nil {
		return err
	}
	if err := d.ids.killRoles(ctx, h.ID); err != nil {
		return err
	}
	if len(data.Cgroups) == 0 {
		if complete {
			return nil
		}
		return d.ids.awaitDying(ctx, h.ID)
	}
	// A cgroup that could be removed had no process, a dying one neither.
	for _, p := range data.Cgroups {
		err = errors.Join(err, removeCgroup(ctx, p))
	}
	return err
}

// killRoles kills the processes that gVisor's roles run as for a sandbox, and
// returns nil when a search has found none. All others of the sandbox live in
// their PID namespaces, and have ended when these have. It is for a keeper that
// died between starting them and recording them.
func (own identity) killRoles(ctx context.Context, id sandbox.ID) error {
	none := func() ([]int, error) {
		pids, err := own.findRoles(id)
		for _, pid := range pids {
			own.killRole(pid, id)
		}
		return pids, err
	}
	if err := until(ctx, none); err != nil {
		return fmt.Errorf("sandbox %s: %w", id, err)
	}
	return nil
}

// awaitDying waits for roles that are about to end: one has lost its command
// line, by which it is known, while the rest of its namespace may still be
// there. It may be another sandbox's, so this is only for where no cgroup
// tells.
func (own identity) awaitDying(ctx context.Context, id sandbox.ID) error {
	dying, err := findProcesses(own.isDying)
	if err != nil {
		return err
	}
	err = until(ctx, func() ([]int, error) {
		dying = slices.DeleteFunc(dying, func(pid int) bool { return !own.isDying(pid) })
		return dying, nil
	})
	if err != nil {
		return fmt.Errorf("sandbox %s, dying: %w", id, err)
	}
	return nil
}

// until calls find until it finds no process.
func until(ctx context.Context, find func() ([]int, error)) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := find()
		if err != nil || len(pids) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v are still there: %w", pids, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func (own identity) findRoles(id sandbox.ID) ([]int, error) {
	return findProcesses(func(pid int) bool { return own.isRole(pid, id) })
}

func findProcesses(is func(pid int) bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && is(pid) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// comm is the name of a process, "" when there is none.
func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// mayBeRole tells by name and owner whether a process may be a role: others of
// the host can give theirs any name, and hold up a Reap that waits for it.
func (own identity) mayBeRole(pid int) bool {
	if !slices.Contains([]string{RoleSentry, RoleGofer, roleBegins}, comm(pid)) {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "Uid:" {
			return own.runsRoles(f[1]) && own.runsRoles(f[2]) // real and effective
		}
	}
	return false
}

// isDying reports whether a process is the first of a role's PID namespace and
// has no memory any more, but is not dead yet: it is, as a zombie with one
// thread, when its namespace is empty.
func (own identity) isDying(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	if !own.mayBeRole(pid) {
		return false
	}
	cmdline, err := os.ReadFile(dir + "cmdline")
	if err != nil || len(cmdline) > 0 {
		return false
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return false
	}
	var first, zombie bool
	threads := ""
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "State:":
			zombie = f[1] == "Z" || f[1] == "X"
		case f[0] == "NSpid:":
			first = f[len(f)-1] == "1"
		case f[0] == "Threads:":
			threads = f[1]
		}
	}
	return first && !(zombie && (threads == "1" || threads == "0"))
}

// isRole tells by its command line whether a process is the sentry or gofer of
// a sandbox: the first word is the role's, the last is the ID. No guest can
// forge one: guest processes are threads of stubs, which have no command line
// of their own, and IDs are random. A sentry that a guest has taken over could
// give itself another; it is recorded before there is a guest.
func (own identity) isRole(pid int, id sandbox.ID) bool {
	if !own.mayBeRole(pid) {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	words := bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
	first, last := string(words[0]), string(words[len(words)-1])
	return (first == argv0Sentry || first == argv0Gofer) && last == string(id)
}

// killRole kills a process if, with its identity pinned, it still is a role of
// the sandbox.
func (own identity) killRole(pid int, id sandbox.ID) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if own.isRole(pid, id) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
