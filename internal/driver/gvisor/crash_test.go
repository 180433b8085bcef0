package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// crashEnv tells a child where to die; it carries a crash.
const crashEnv = "BELLJAR_TEST_CRASH"

type crash struct {
	Point  string
	ID     sandbox.ID
	Dir    string
	Root   driver.Root
	Guest  string
	Limits sandbox.Limits
}

// TestCrash kills a keeper at the end of each step of a create and start, and
// has another process reap what it left.
func TestCrash(t *testing.T) { inModes(t, testCrash) }

func testCrash(t *testing.T) {
	d := newDriver(t)
	for _, point := range []string{
		"gvisor.new.ids", "gvisor.new.cgroup", "gvisor.new.files", "gvisor.new.sentry",
		"gvisor.new.gofer", "gvisor.new.record", "gvisor.new.boot", "gvisor.start", "running",
	} {
		t.Run(point, func(t *testing.T) {
			req := request(t)
			h, err := d.Handle(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(crash{point, req.ID, req.Dir, req.Root, req.Guest, req.Limits})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Env = append(os.Environ(), crashEnv+"="+string(b), "BELLJAR_TEST_ENGINE="+testEngine)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys() == nil || exit.String() != "signal: killed" {
				t.Fatalf("the child ended with %v: %s", err, out)
			}
			for range 2 {
				if err := d.Reap(t.Context(), h); err != nil {
					t.Error("reap:", err)
				}
				nothingLeft(t, d, req)
			}
			if stubs := runningEngine(t); len(stubs) > 0 {
				t.Errorf("stubs %v are left", stubs)
			}
		})
	}
}

// dieAt is the child of testCrash.
func dieAt(b string) error {
	var c crash
	if err := json.Unmarshal([]byte(b), &c); err != nil {
		return err
	}
	d, err := New(Options{Engine: os.Getenv("BELLJAR_TEST_ENGINE")})
	if err != nil {
		return err
	}
	die := func() { unix.Kill(os.Getpid(), unix.SIGKILL); select {} }
	req := &driver.CreateRequest{ID: c.ID, Dir: c.Dir, Root: c.Root, Guest: c.Guest, Limits: c.Limits}
	req.Trace = func(name string, _ time.Time, _ time.Duration) {
		if name == c.Point {
			die()
		}
	}
	i, err := d.Create(context.Background(), req)
	if err != nil {
		return err
	}
	if err := i.Start(context.Background()); err != nil {
		return err
	}
	die()
	return nil
}

// runningEngine lists processes that run the engine: roles, helpers and the
// stubs in which a sentry runs its guest's programs.
func runningEngine(t *testing.T) (pids []int) {
	t.Helper()
	engine, err := os.Stat(testEngine)
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		exe, err := os.Stat(filepath.Join(dir, "exe"))
		if err == nil && os.SameFile(exe, engine) {
			pids = append(pids, atoi(filepath.Base(dir)))
		}
	}
	return pids
}
