package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest"
)

// reapEnv carries a handle to a child that reaps it.
const reapEnv = "BELLJAR_TEST_REAP"

// TestConformance runs the suite that every driver runs.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("probe: -short was asked for, and this runs hundreds of sandboxes")
	}
	guest := drivertest.BuildGuest(t)
	openUp(filepath.Dir(guest))
	t.Setenv(drivertest.GuestEnv, guest)
	inModes(t, func(t *testing.T) {
		// A driver's threads live as long as the process: all parts share two.
		d, another := newDriver(t), newDriver(t)
		drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
			return drivertest.Fixture{
				Driver: d, Guest: guest, Root: hostRoot(t), User: driver.User{UID: 1000, GID: 1000},
				Spawns:        true,
				Another:       func() driver.Driver { return another },
				ReapElsewhere: reapElsewhere,
				Leftovers:     leftovers,
			}
		})
	})
}

func leftovers(h driver.Handle) (left []string) {
	var data handleData
	if err := json.Unmarshal(h.Data, &data); err != nil {
		return []string{err.Error()}
	}
	for _, p := range data.Cgroups {
		if _, err := os.Stat(p.Dir); err == nil {
			left = append(left, p.Dir)
		}
	}
	return left
}

func reapElsewhere(ctx context.Context, h driver.Handle) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), reapEnv+"="+string(b), "BELLJAR_TEST_ENGINE="+testEngine)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// reapHandle is the child of reapElsewhere.
func reapHandle(b string) error {
	var h driver.Handle
	if err := json.Unmarshal([]byte(b), &h); err != nil {
		return err
	}
	d, err := New(Options{Engine: os.Getenv("BELLJAR_TEST_ENGINE")})
	if err != nil {
		return err
	}
	return d.Reap(context.Background(), h)
}
