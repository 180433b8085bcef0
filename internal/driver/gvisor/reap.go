package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
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
	var data handleData
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return fmt.Errorf("handle of %s: %w", h.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// The processes first: as long as there is a sentry it may start others.
	if err := killRoles(ctx, h.ID); err != nil {
		return err
	}
	var err error
	for _, p := range data.Cgroups {
		err = errors.Join(err, removeCgroup(ctx, p))
	}
	return err
}

// killRoles kills the processes that gVisor's roles run as for a sandbox, and
// returns nil when a search has found none. All others of the sandbox live in
// their PID namespaces and end with them.
func killRoles(ctx context.Context, id sandbox.ID) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := findRoles(id)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			killRole(pid, id)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of sandbox %s are still there: %w", pids, id, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func findRoles(id sandbox.ID) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && isRole(pid, id) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// isRole tells by its command line whether a process is the sentry or gofer of
// a sandbox: the first word is the role's, the last is the ID. No guest can
// forge one: guest processes are threads of stubs, which have no command line
// of their own, and IDs are random.
func isRole(pid int, id sandbox.ID) bool {
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
func killRole(pid int, id sandbox.ID) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if isRole(pid, id) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
