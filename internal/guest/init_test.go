package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest"
	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// newInit starts a guest as PID 1 of namespaces of its own.
func newInit(t *testing.T, limits wire.GuestLimits) *box {
	t.Helper()
	needRoot(t)
	if err := syscall.Unshare(0); err != nil {
		t.Skipf("probe: unshare: %v", err)
	}
	run := filepath.Join(t.TempDir(), "run")
	b := newBox(t, options{
		cfg: guest.Config{
			Init: true, RunDir: run, HookDir: filepath.Join(run, "restore.d"),
			MachineIDs: []string{filepath.Join(run, "machine-id"), filepath.Join(run, "dbus-id")},
		},
		hello: func(h *wire.Hello) {
			h.Time = time.Time{} // the host's clock is none of a test's business
			h.Token = "secret-token"
			h.Limits = limits
		},
		attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC},
	})
	b.user = "user"
	return b
}

// own is an ID that no other test run's cgroup has.
func own(name string) string { return fmt.Sprintf("belljartest%d%s", os.Getpid(), name) }

func TestInit(t *testing.T) {
	b := newInit(t, wire.GuestLimits{})
	host, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	run := func(name, script string) string {
		t.Helper()
		r := b.run(wire.Start{ID: own(name), Argv: sh(script), User: "root"})
		if r.exit.Code != 0 {
			t.Errorf("%s: %+v %s", script, r.exit, r.stderr)
		}
		return strings.TrimSpace(r.stdout)
	}
	if got := run("host", "hostname"); got != "box" {
		t.Errorf("got host name %q", got)
	}
	if now, _ := os.Hostname(); now == "box" {
		t.Fatal("the host's name has changed")
	}
	first := run("boot", "cat /proc/sys/kernel/random/boot_id")
	if first == strings.TrimSpace(string(host)) || len(first) != 36 {
		t.Errorf("got boot_id %q, the host's is %q", first, host)
	}
	if now, _ := os.ReadFile("/proc/sys/kernel/random/boot_id"); string(now) != string(host) {
		t.Fatal("the host's boot_id has changed")
	}
	h := b.hi
	for _, restored := range []bool{false, true} {
		h.Generation++
		h.Restored, h.Entropy, h.Clock = restored, sandbox.HostLive, sandbox.HostLive
		reply, err := b.Hello(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		b.Client = guestclient.New(b.host, "http://guest", h.Generation)
		now := run(fmt.Sprint("boot", h.Generation), "cat /proc/sys/kernel/random/boot_id")
		if now == first == restored || now != reply.BootID {
			t.Errorf("restored %t: got boot_id %q after %q, hello said %q", restored, now, first, reply.BootID)
		}
	}
}

func TestInitReapsOrphans(t *testing.T) {
	b := newInit(t, wire.GuestLimits{})
	p := b.begin(wire.Start{
		ID: own("orphans"), Argv: sh("for i in 1 2 3 4 5 6 7 8; do (true & sleep 0.01 &) ; done; exec sleep 60"), KeepTree: true, User: "root",
	})
	waitFor(t, "the orphans to be reaped", func() bool {
		r := b.run(wire.Start{ID: own(<-nextID), Argv: sh("cat /proc/[0-9]*/stat"), User: "root"})
		n := 0
		for line := range strings.Lines(r.stdout) {
			if strings.Contains(line, ") Z ") {
				n++
			}
		}
		return n == 0 && r.stdout != ""
	})
	if err := b.Kill(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
}

func TestInitProcessLimit(t *testing.T) {
	b := newInit(t, wire.GuestLimits{Processes: 20, OpenFiles: 100})
	if got := b.run(wire.Start{ID: own("files"), Argv: sh("ulimit -n; ulimit -Hn")}); got.stdout != "100\n100\n" {
		t.Errorf("got open files %q", got.stdout)
	}
	probe := b.run(wire.Start{ID: own("cgroup"), Argv: []string{"cat", "/proc/self/cgroup"}, User: "root"})
	if !strings.Contains(probe.stdout, own("cgroup")) {
		t.Skip("probe: PID 1 could not mount a cgroup v1 hierarchy with the pids controller")
	}
	p := b.begin(wire.Start{
		ID: own("bomb"), User: "root", Timeout: 3 * time.Second,
		Argv: sh("b() { b | b & b; }; b"),
	})
	r := b.read(p.ID)
	if !strings.Contains(strings.ToLower(r.stderr), "fork") {
		t.Errorf("got %q, want refused forks", r.stderr)
	}
	left := b.run(wire.Start{ID: own("left"), Argv: sh("ls /proc | grep -c '^[0-9]'"), User: "root"})
	if n := strings.TrimSpace(left.stdout); n > "6" || len(n) > 1 {
		t.Errorf("%s processes are there after the bomb", n)
	}
	m, err := b.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.LimitHits[sandbox.LimitProcesses] == 0 {
		t.Errorf("got hits %v, want one of processes", m.LimitHits)
	}
}
