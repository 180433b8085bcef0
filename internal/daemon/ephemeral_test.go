package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/daemon/httpapi"
	"github.com/belljar-sh/belljar/internal/daemon/keepers"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// inProcess is a manager without a daemon, as `belljar run` has it.
func (in *installation) inProcess() (*client.Client, *manager.Manager) {
	in.t.Helper()
	l := launcher{dirs: in.dirs, bin: in.bin}
	m, err := manager.Open(in.t.Context(), manager.Options{
		Keepers:   keepers.New(keepers.Options{Dir: in.dirs.Keepers(), Launcher: l, Own: true}),
		Templates: templates{}, Boundaries: []sandbox.Boundary{sandbox.GVisor},
		Guest: filepath.Join(in.bin, guestName), Build: build.ID(),
	})
	if err != nil {
		in.t.Fatal(err)
	}
	return client.New(client.InProcess(httpapi.New(httpapi.Options{Manager: m, Build: build.ID(), Mode: "in-process"}))), m
}

// Without a daemon the same client works, and Close leaves nothing.
func TestInProcess(t *testing.T) {
	in := install(t)
	c, m := in.inProcess()
	made, err := c.Create(t.Context(), sandbox.Spec{User: "root", Workdir: "/"}, &client.Start{
		ID: "main", Argv: []string{"/bin/sh", "-c", "cat; exit 5"}, Stdin: true,
	})
	if err != nil || made.Process == nil {
		t.Fatalf("create: got %+v, %v", made, err)
	}
	input := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	var out bytes.Buffer
	exit, err := c.Follow(t.Context(), string(made.Sandbox.ID), "main", client.Streams{Stdin: strings.NewReader(input), Stdout: &out})
	if err != nil || exit.Code != 5 || out.String() != input {
		t.Errorf("follow: got %+v, %v, %d bytes", exit, err, out.Len())
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{User: "root"}, &client.Start{Argv: []string{"x"}, Capture: true}); sandbox.KindOf(err) != sandbox.Unsupported {
		t.Errorf("capture without a daemon: got %v, want unsupported", err)
	}
	if err := c.Stop(t.Context(), false); sandbox.KindOf(err) != sandbox.Unsupported {
		t.Errorf("stop without a daemon: got %v, want unsupported", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	in.nothingLeft()
	within(t, 10*time.Second, "the keeper ends", func() bool { return len(in.processes(engineName)) == 0 })
	if _, err := c.Create(t.Context(), sandbox.Spec{}, nil); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("create after the end: got %v, want unavailable", err)
	}
}

// open counts the descriptors of a process.
func open(t testing.TB, pid int) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// Many rounds leave no descriptor in the daemon and no goroutine in the client.
func TestRounds(t *testing.T) {
	in := install(t)
	c := in.dial()
	round := func() {
		sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
		var out bytes.Buffer
		exit, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{
			Argv: []string{"/bin/cat"}, Streams: client.Streams{Stdin: strings.NewReader("x"), Stdout: &out},
		})
		if err != nil || exit.Code != 0 || out.String() != "x" {
			t.Fatalf("exec: got %+v, %v, %q", exit, err, out.String())
		}
		if _, err := c.Kill(t.Context(), string(sb.ID)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		round()
	}
	daemon := pid(t, c)
	fds, goroutines := open(t, daemon), runtime.NumGoroutine()
	for range 15 {
		round()
	}
	within(t, 10*time.Second, "descriptors and goroutines are given back", func() bool {
		return open(t, daemon) <= fds+3 && runtime.NumGoroutine() <= goroutines+5
	})
	in.nothingLeft()
}
