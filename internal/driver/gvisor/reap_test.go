package gvisor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// forgeEnv tells a child to look like a role, and how: "waits" or "dies".
const forgeEnv = "BELLJAR_TEST_FORGE"

// init is the forger's program, as only here the first thread is at hand.
func init() {
	how := os.Getenv(forgeEnv)
	if how == "" {
		return
	}
	if err := os.WriteFile("/proc/self/comm", []byte(RoleSentry), 0); err != nil {
		panic(err)
	}
	if how == "waits" {
		fmt.Println()
		for {
			_ = unix.Pause()
		}
	}
	go func() { // without its first thread a process has no command line
		for {
			if b, err := os.ReadFile("/proc/self/cmdline"); err != nil || len(b) == 0 {
				break
			}
			runtime.Gosched()
		}
		fmt.Println()
		for {
			_ = unix.Pause()
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// forge starts a process of a user's, in a PID namespace of its own, that has
// the name and the command line of a sandbox's role.
func forge(t *testing.T, uid uint32, how string, id sandbox.ID) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", string(id))
	cmd.Args[0] = argv0Sentry
	cmd.Env = append(os.Environ(), forgeEnv+"="+how)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID,
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal("forger:", err)
	}
	return cmd.Process.Pid
}

// TestReapForged: processes of other users that look like roles neither hold up
// a Reap nor are killed by it; those of our own are roles.
func TestReapForged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe: not root, so the test cannot run a process as another user")
	}
	d := newDriver(t)
	id := sandbox.NewID()
	other := forge(t, 65534, "waits", id)
	if d.ids.isRole(other, id) {
		t.Error("a process of another user is a role")
	}
	for _, uid := range []uint32{0, rangeFirst, rangeFirst + rangeCount*rangeSize - 1} {
		if pid := forge(t, uid, "waits", id); !d.ids.isRole(pid, id) {
			t.Errorf("a process of user %d is no role", uid)
		}
	}
	for _, uid := range []uint32{rangeFirst - 1, rangeFirst + rangeCount*rangeSize} {
		if pid := forge(t, uid, "waits", id); d.ids.isRole(pid, id) {
			t.Errorf("a process of user %d is a role", uid)
		}
	}
	if pid := forge(t, 0, "dies", id); !d.ids.isDying(pid) {
		t.Error("a process of our own, without memory, is not dying")
	} else {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if pid := forge(t, 65534, "dies", id); d.ids.isDying(pid) {
		t.Error("a process of another user is dying")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	h := driver.Handle{Boundary: sandbox.GVisor, ID: id, Dir: filepath.Join(t.TempDir(), "x"), Data: []byte("{}")}
	if err := d.Reap(ctx, h); err != nil {
		t.Error("reap:", err)
	}
	if err := syscall.Kill(other, 0); err != nil || comm(other) != RoleSentry {
		t.Errorf("another user's process was killed: %v", err)
	}
}
