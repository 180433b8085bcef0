package fake_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest"
	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	"github.com/belljar-sh/belljar/sandbox"
)

const roleEnv = "BELLJAR_FAKE_TEST_ROLE"

// TestMain lets this program reap or crash as another process.
func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// want is a request that can be passed to another process.
type want struct {
	ID         sandbox.ID
	Dir, Guest string
}

func (w want) request() *driver.CreateRequest {
	return &driver.CreateRequest{ID: w.ID, Dir: w.Dir, Guest: w.Guest, Limits: sandbox.DefaultLimits(1)}
}

// play has as arguments the outside directory and a handle or a want.
func play(role string, args []string) error {
	d := fake.New(fake.Options{Outside: args[0]})
	if role == "reap" {
		var h driver.Handle
		if err := json.Unmarshal([]byte(args[1]), &h); err != nil {
			return err
		}
		return d.Reap(context.Background(), h)
	}
	var w want
	if err := json.Unmarshal([]byte(args[1]), &w); err != nil {
		return err
	}
	d.On(fake.Step(role), fake.Action{Crash: true})
	inst, err := d.Create(context.Background(), w.request())
	if err != nil {
		return err
	}
	if err := inst.Start(context.Background()); err != nil {
		return err
	}
	return inst.Destroy(context.Background())
}

func elsewhere(ctx context.Context, role, outside string, v any) error {
	arg, err := json.Marshal(v)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, outside, string(arg))
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func fixture(outside string, o fake.Options) drivertest.Fixture {
	o.Outside = outside
	return drivertest.Fixture{
		Driver:  fake.New(o),
		Another: func() driver.Driver { return fake.New(o) },
		Leftovers: func(h driver.Handle) []string {
			left, _ := filepath.Glob(filepath.Join(outside, string(h.ID)))
			return left
		},
	}
}

func TestConformanceInProcess(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		f := fixture(t.TempDir(), fake.Options{Serve: testguest.Run})
		// Only its own process can end a guest that runs in it.
		d := f.Driver
		f.Another = func() driver.Driver { return d }
		return f
	})
}

func TestConformanceChild(t *testing.T) {
	guest := drivertest.BuildGuest(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		outside := t.TempDir()
		f := fixture(outside, fake.Options{Enforces: []sandbox.LimitName{sandbox.LimitOpenFiles}})
		f.Guest, f.Spawns = guest, true
		f.ReapElsewhere = func(ctx context.Context, h driver.Handle) error {
			return elsewhere(ctx, "reap", outside, h)
		}
		return f
	})
}

// TestCrashThenReap kills the driver's process at each step and has the rest
// reaped from here.
func TestCrashThenReap(t *testing.T) {
	guest := drivertest.BuildGuest(t)
	for _, step := range []fake.Step{fake.Create, fake.CreateHalf, fake.Start, fake.Destroy, fake.ReapHalf} {
		t.Run(string(step), func(t *testing.T) {
			outside := t.TempDir()
			req := want{ID: sandbox.NewID(), Dir: t.TempDir(), Guest: guest}
			err := elsewhere(t.Context(), string(step), outside, req)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
				t.Fatalf("the process was to crash: %v", err)
			}
			d := fake.New(fake.Options{Outside: outside})
			h, err := d.Handle(req.request())
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Reap(t.Context(), h); err != nil {
				t.Errorf("reap: %v", err)
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Errorf("left outside: %v", left)
			}
			environs, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, f := range environs {
				if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), string(req.ID)) {
					t.Errorf("a process is left: %s", f)
				}
			}
		})
	}
}

func TestScript(t *testing.T) {
	d := fake.New(fake.Options{Serve: testguest.Run, Outside: t.TempDir()})
	boom := sandbox.Errorf(sandbox.Unavailable, "boom")
	req := &driver.CreateRequest{ID: sandbox.NewID(), Dir: t.TempDir(), Limits: sandbox.DefaultLimits(1)}
	d.On(fake.Create, fake.Action{Err: boom, Times: 2})
	for i := range 2 {
		if _, err := d.Create(t.Context(), req); !errors.Is(err, boom) {
			t.Errorf("create %d: %v, want boom", i, err)
		}
	}
	d.On(fake.Start, fake.Action{Block: true})
	inst, err := d.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := inst.Start(ctx); sandbox.KindOf(err) != sandbox.Canceled {
		t.Errorf("blocked start: %v, want canceled", err)
	}
	if got := d.Seen(fake.Create); got != 3 {
		t.Errorf("seen %d creates, want 3", got)
	}
	if err := inst.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	inst.Channels().Down.Close()
	inst.Channels().Up.Close()
}
