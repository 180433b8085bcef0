package launch_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const outsideEnv = "BELLJAR_TEST_OUTSIDE"

// TestMain makes this program its own engine, with the fake driver, and its
// own guest.
func TestMain(m *testing.M) {
	if os.Getenv("BELLJAR_FAKE") != "" {
		os.Exit(playGuest())
	}
	var play func(context.Context, []string, func() ([]driver.Driver, error)) error
	if len(os.Args) > 1 {
		play = map[string]func(context.Context, []string, func() ([]driver.Driver, error)) error{
			"keeper": keeper.Command, "reap": keeper.ReapCommand,
		}[os.Args[1]]
	}
	if play == nil {
		os.Exit(m.Run())
	}
	err := play(context.Background(), os.Args[2:], func() ([]driver.Driver, error) {
		return []driver.Driver{fake.New(fake.Options{Outside: os.Getenv(outsideEnv)})}, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playGuest() int {
	if len(os.Args) > 1 && os.Args[1] == testguest.SleepArg {
		<-make(chan struct{}, 1)
	}
	var conns [2]net.Conn
	for i := range conns {
		f := os.NewFile(uintptr(3+i), "channel")
		c, err := net.FileConn(f)
		if err != nil {
			return 2
		}
		f.Close()
		conns[i] = c
	}
	return testguest.Run(context.Background(), conns[0], conns[1])
}

type world struct {
	launch.Options
	outside string
}

// setup returns options for keepers whose traces are checked at the end.
func setup(t testing.TB) *world {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{outside: t.TempDir()}
	w.Options = launch.Options{
		RuntimeDir: filepath.Join(t.TempDir(), "run"), Engine: self,
		Env: []string{outsideEnv + "=" + w.outside, "GORACE=atexit_sleep_ms=0"},
	}
	t.Cleanup(func() { w.clean(t) })
	return w
}

// clean checks that nothing is left of any keeper.
func (w *world) clean(t testing.TB) {
	t.Helper()
	for _, dir := range []string{filepath.Join(w.RuntimeDir, "keepers"), w.outside} {
		left, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			t.Errorf("%s: %v, %v, want nothing left", dir, left, err)
		}
	}
}

func begin(t testing.TB, o launch.Options) *launch.Process {
	t.Helper()
	p, err := launch.Start(t.Context(), o)
	if err != nil {
		if os.Geteuid() != 0 && sandbox.KindOf(err) == sandbox.Unsupported {
			t.Skipf("probe: user namespaces: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func createReq() *wire.Create {
	self, _ := os.Executable()
	return &wire.Create{
		ID: sandbox.NewID(), Boundary: sandbox.GVisor, Guest: self, Limits: sandbox.DefaultLimits(2),
		Hello: guest.Hello{Generation: 1, User: "root"},
	}
}

func TestStartCreateClose(t *testing.T) {
	w := setup(t)
	w.Lifeline = true
	p := begin(t, w.Options)
	c := p.Client()
	defer c.Close()
	begun := time.Now()
	h, err := c.Hello(t.Context())
	if err != nil {
		t.Fatal(p.Explain(err))
	}
	t.Logf("ids: %s %s; hello after %v", p.IDs, p.IDsReason, time.Since(begun))
	if h.PID != p.PID {
		t.Errorf("pid %d, want %d", h.PID, p.PID)
	}
	mine, _ := os.Readlink("/proc/self/ns/mnt")
	if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID)); err == nil && theirs == mine {
		t.Error("the keeper shares our mount namespace")
	}
	req := createReq()
	if _, err := c.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://guest/v1/test/spawn?n=3", nil)
	resp, err := c.Guest(req.ID, 1).RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatalf("spawn: %v, %v", resp, err)
	}
	resp.Body.Close()
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := p.Failure(); err != nil {
		t.Errorf("failure = %v, want an orderly end", err)
	}
}

// TestKilledKeeper kills the keeper where it stands and has the rest reaped.
func TestKilledKeeper(t *testing.T) {
	w := setup(t)
	p := begin(t, w.Options)
	c := p.Client()
	defer c.Close()
	for range 3 {
		if _, err := c.Create(t.Context(), createReq()); err != nil {
			t.Fatal(p.Explain(err))
		}
	}
	if proc, err := os.FindProcess(p.PID); err != nil || proc.Kill() != nil {
		t.Fatal("cannot kill the keeper")
	}
	<-p.Done()
	if err := launch.ReapStale(t.Context(), w.Options); err != nil {
		t.Errorf("reap: %v", err)
	}
	w.clean(t)
}

func TestCrashPoints(t *testing.T) {
	for _, point := range keeper.CrashPoints() {
		t.Run(string(point), func(t *testing.T) {
			w := setup(t)
			w.Crash = point
			p := begin(t, w.Options)
			c := p.Client()
			defer c.Close()
			req := createReq()
			_, err := c.Create(t.Context(), req)
			if err == nil {
				_, err = c.Delete(t.Context(), req.ID)
			}
			if sandbox.KindOf(err) != sandbox.Unavailable {
				t.Errorf("error %v, want unavailable: the keeper died", err)
			}
			<-p.Done()
			if err := launch.ReapStale(t.Context(), w.Options); err != nil {
				t.Errorf("reap: %v", err)
			}
			if err := launch.ReapStale(t.Context(), w.Options); err != nil {
				t.Errorf("reap again: %v", err)
			}
		})
	}
}

// TestManyAtOnce starts keepers, kills half of them and reaps from every side:
// nobody may touch what is alive.
func TestManyAtOnce(t *testing.T) {
	w := setup(t)
	const n = 12
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			o := w.Options
			o.Lifeline = i%2 == 0
			p, err := launch.Start(t.Context(), o)
			if err != nil {
				if sandbox.KindOf(err) != sandbox.Unsupported {
					t.Errorf("start: %v", err)
				}
				return
			}
			c := p.Client()
			defer c.Close()
			req := createReq()
			if _, err := c.Create(t.Context(), req); err != nil {
				t.Errorf("create: %v", p.Explain(err))
			}
			if i%2 == 1 {
				if proc, err := os.FindProcess(p.PID); err == nil {
					proc.Kill()
				}
				<-p.Done()
			}
			if err := launch.ReapStale(t.Context(), w.Options); err != nil {
				t.Errorf("reap: %v", err)
			}
			if i%2 == 0 {
				if s, err := c.Status(t.Context(), req.ID); err != nil || !s.Running {
					t.Errorf("a living sandbox was touched: %+v, %v", s, err)
				}
				if err := p.Close(t.Context()); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if err := launch.ReapStale(t.Context(), w.Options); err != nil {
		t.Errorf("reap: %v", err)
	}
}

func TestReapRefusesTheLiving(t *testing.T) {
	w := setup(t)
	p := begin(t, w.Options)
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := launch.Reap(t.Context(), p.Dir, w.Options); !errors.Is(err, keeper.ErrHeld) || sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("reap: %v, want conflict", err)
	}
	if names, err := launch.Living(w.RuntimeDir); err != nil || len(names) != 1 || names[0] != p.Name {
		t.Errorf("living = %v, %v, want %s", names, err, p.Name)
	}
}

// TestLookersTakeNothing: those who look which keepers live keep no reaper from
// a dead one's directory, and take none of each other for its owner.
func TestLookersTakeNothing(t *testing.T) {
	w := setup(t)
	dir := filepath.Join(w.RuntimeDir, "keepers", "dead")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, keeper.LockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var looking sync.WaitGroup
	for range 3 {
		looking.Go(func() {
			for range 500 {
				if names, err := launch.Living(w.RuntimeDir); err != nil || len(names) > 0 {
					t.Errorf("living: %v, %v", names, err)
					return
				}
			}
		})
	}
	looking.Wait()
	for range 3 {
		looking.Go(func() {
			for range 500 {
				launch.Alive(dir)
			}
		})
	}
	for range 500 {
		lock, err := keeper.TryLock(dir)
		if err != nil {
			t.Error("lock:", err)
			break
		}
		lock.Close()
	}
	looking.Wait()
	if err := launch.ReapStale(t.Context(), w.Options); err != nil {
		t.Error("reap:", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead keeper's directory is left: %v", err)
	}
}

func TestEngineFails(t *testing.T) {
	w := setup(t)
	script := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no luck today >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.Engine = script
	p := begin(t, w.Options)
	err := p.Ready(t.Context())
	if e := sandbox.AsError(err); e == nil || e.Kind != sandbox.Unavailable || !strings.Contains(e.Hint, "no luck today") {
		t.Errorf("ready: %v (%+v), want what the engine said", err, e)
	}
	_, err = p.Client().Hello(t.Context())
	if !strings.Contains(fmt.Sprint(p.Explain(err)), "ended as it started") {
		t.Errorf("explained: %v", p.Explain(err))
	}
}

func TestBadInput(t *testing.T) {
	w := setup(t)
	for name, tc := range map[string]struct {
		change func(o *launch.Options)
		want   sandbox.Kind
	}{
		"no engine":     {func(o *launch.Options) { o.Engine = "/nonexistent/belljar-engine" }, sandbox.Unsupported},
		"no program":    {func(o *launch.Options) { o.Engine = "/etc/passwd" }, sandbox.Unsupported},
		"relative dir":  {func(o *launch.Options) { o.RuntimeDir = "run" }, sandbox.Invalid},
		"open dir":      {func(o *launch.Options) { o.RuntimeDir = openDir(t) }, sandbox.Denied},
		"dir is a file": {func(o *launch.Options) { o.RuntimeDir = "/etc/passwd" }, sandbox.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.Options
			tc.change(&o)
			_, err := launch.Start(t.Context(), o)
			if e := sandbox.AsError(err); e == nil || e.Kind != tc.want || e.Field == "" || e.Hint == "" && tc.want != sandbox.Invalid {
				t.Errorf("start: %+v, want %s with field and hint", e, tc.want)
			}
		})
	}
}

func openDir(t *testing.T) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestParentDies has a process with a lifeline keeper killed: the keeper and
// its sandboxes go with it.
func TestParentDies(t *testing.T) {
	if dir := os.Getenv("BELLJAR_TEST_PARENT"); dir != "" {
		playParent(t, dir)
		return
	}
	w := setup(t)
	self, _ := os.Executable()
	cmd := exec.Command(self, "-test.run", "^TestParentDies$")
	cmd.Env = append(os.Environ(), "BELLJAR_TEST_PARENT="+w.RuntimeDir, outsideEnv+"="+w.outside)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, _ := out.Read(line)
	if !strings.HasPrefix(string(line[:n]), "created") {
		cmd.Wait()
		if strings.Contains(string(line[:n]), "skip") {
			t.Skip("probe: user namespaces: refused")
		}
		t.Fatalf("the parent said %q", line[:n])
	}
	cmd.Process.Kill()
	cmd.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		left, err := os.ReadDir(filepath.Join(w.RuntimeDir, "keepers"))
		if err == nil && len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the keeper lives on without its parent")
		}
	}
}

func playParent(t *testing.T, dir string) {
	self, _ := os.Executable()
	p, err := launch.Start(t.Context(), launch.Options{
		RuntimeDir: dir, Engine: self, Lifeline: true, Env: []string{outsideEnv + "=" + os.Getenv(outsideEnv)},
	})
	if err != nil {
		fmt.Println("skip", err)
		return
	}
	if _, err := p.Client().Create(t.Context(), createReq()); err != nil {
		fmt.Println("create:", p.Explain(err))
		return
	}
	fmt.Println("created")
	<-t.Context().Done()
}
