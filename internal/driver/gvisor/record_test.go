package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestReapRecorded: what is recorded is killed whatever it looks like, and a
// process that only has its number is not.
func TestReapRecorded(t *testing.T) {
	d := newDriver(t)
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		boot   string
		later  uint64
		killed bool
		cut    bool
	}{
		{name: "recorded", boot: boot, killed: true},
		{name: "a later process of its number", boot: boot, later: 1},
		{name: "of another boot", boot: "00000000-0000-0000-0000-000000000000"},
		{name: "half a record", boot: boot, cut: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
			p, err := identify(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			p.Start -= c.later
			id, dir := sandbox.NewID(), t.TempDir()
			if err := (record{Boot: c.boot, Roles: []process{p}}).write(dir); err != nil {
				t.Fatal(err)
			}
			if c.cut {
				if err := os.Truncate(filepath.Join(dir, recordName), 20); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := d.Reap(t.Context(), driver.Handle{Boundary: sandbox.GVisor, ID: id, Dir: dir, Data: []byte("{}")}); err != nil {
					t.Error("reap:", err)
				}
			}
			if !c.killed {
				select {
				case <-ended:
					t.Error("it was killed")
				default:
				}
				return
			}
			<-ended // Reap returns when it is dead, not when it has been waited for
			if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
				t.Errorf("it ended with %v", cmd.ProcessState)
			}
		})
	}
}

// TestReapRenamed: a sentry that has given itself another name and command line
// is found all the same where no cgroup tells which are a sandbox's processes.
func TestReapRenamed(t *testing.T) { inModes(t, testReapRenamed) }

func testReapRenamed(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	b := start(t, d, req)
	i := b.i.(*Instance)
	pid := i.sentry.Process.Pid
	if err := renameProcess(pid); err != nil {
		t.Skip("probe: cannot write another process's memory:", err)
	}
	if d.ids.isRole(pid, req.ID) {
		t.Fatal("the sentry still looks like one")
	}
	h := driver.Handle{Boundary: sandbox.GVisor, ID: req.ID, Dir: req.Dir, Data: []byte("{}")}
	if err := newDriver(t).Reap(t.Context(), h); err != nil {
		t.Fatal("reap:", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if e, err := i.Wait(ctx); err != nil || e.Signal != int(unix.SIGKILL) {
		t.Errorf("the sentry has not been killed: %+v, %v", e, err)
	}
}

// renameProcess does to a process what it could do to itself: its command line
// is memory of its own.
func renameProcess(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	begin, err1 := strconv.ParseInt(string(fields[45]), 10, 64)
	end, err2 := strconv.ParseInt(string(fields[46]), 10, 64)
	if err1 != nil || err2 != nil || begin == 0 {
		return fmt.Errorf("no command line in %s", stat)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.WriteAt(bytes.Repeat([]byte("x"), int(end-begin-1)), begin)
	return err
}
