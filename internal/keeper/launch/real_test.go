package launch_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// The engine of the installation and the number of rounds per crash point, for
// the test that kills real keepers.
const (
	engineEnv = "BELLJAR_TEST_ENGINE"
	roundsEnv = "BELLJAR_TEST_ROUNDS"
)

// TestRealEngineCrashPoints kills a keeper that runs gVisor at every crash
// point, has the rest reaped and looks for what is left on the host.
func TestRealEngineCrashPoints(t *testing.T) {
	engine := os.Getenv(engineEnv)
	if engine == "" {
		t.Skipf("probe: %s names no engine", engineEnv)
	}
	rounds, err := strconv.Atoi(os.Getenv(roundsEnv))
	if err != nil || rounds < 1 {
		rounds = 1
	}
	guest, root := drivertest.BuildGuest(t), emptyRoot(t)
	mounts := hostMounts(t)
	for _, point := range keeper.CrashPoints() {
		t.Run(string(point), func(t *testing.T) {
			for range rounds {
				w := setup(t)
				w.Engine, w.Crash = engine, point
				p := begin(t, w.Options)
				c := p.Client()
				req := createReq()
				req.Guest, req.Root = guest, root
				if _, err = c.Create(t.Context(), req); err == nil {
					_, err = c.Delete(t.Context(), req.ID)
				}
				c.Close()
				if sandbox.KindOf(err) != sandbox.Unavailable {
					t.Errorf("error %+v, want unavailable: the keeper died", sandbox.AsError(p.Explain(err)))
				}
				<-p.Done()
				if err := launch.ReapStale(t.Context(), w.Options); err != nil {
					t.Errorf("reap: %+v", sandbox.AsError(err))
				}
				nothingLeft(t, req, mounts)
			}
		})
	}
}

// emptyRoot is a root with nothing but the places that a guest kernel mounts
// on.
func emptyRoot(t *testing.T) driver.Root {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != "/"; p = filepath.Dir(p) { // a sandbox's own ids must come by
		if fi, err := os.Stat(p); err == nil && fi.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(p, fi.Mode().Perm()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", ".belljar"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return driver.Root{Path: dir}
}

func hostMounts(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		out = append(out, strings.Fields(line)[4])
	}
	slices.Sort(out)
	return out
}

// nothingLeft looks for processes, cgroups and mounts of a sandbox. A killed
// process may take a moment to leave the table.
func nothingLeft(t *testing.T, req *wire.Create, mounts []string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(5 * time.Second); ; {
		left = traces(string(req.ID))
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("left of %s: %v", req.ID, left)
	}
	if now := hostMounts(t); !slices.Equal(now, mounts) {
		t.Errorf("mounts on the host: %d, before %d", len(now), len(mounts))
	}
}

func traces(id string) (out []string) {
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/cgroup"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return []string{err.Error()}
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(id)) {
				out = append(out, f)
			}
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/*" + id + "*", "/sys/fs/cgroup/*/*/*" + id + "*", "/sys/fs/cgroup/*" + id + "*"} {
		if dirs, err := filepath.Glob(pattern); err == nil {
			out = append(out, dirs...)
		}
	}
	return out
}
