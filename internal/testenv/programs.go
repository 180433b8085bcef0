package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/sandbox"
)

// EnvBin names a directory that holds the three programs already, as `make
// test` sets it.
const EnvBin = "BELLJAR_BIN"

// builtIn is the directory of programs that were built here.
var builtIn atomic.Pointer[string]

var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "belljar-bin-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // ordinary users run them too
		return "", err
	}
	builtIn.Store(&dir)
	cmd := exec.Command("go", "build", "-p", "2", "-o", dir+"/", "./cmd/belljar", "./cmd/belljar-engine", "./cmd/belljar-guest")
	cmd.Dir = root
	// The settings of the Makefile, so that gVisor is compiled once; static,
	// because boot and gofer run where no shared library can be found.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(string(bytes.TrimSpace(out))), nil
}

// Bin returns the directory of the three programs. They are built at the first
// call of a test process unless [EnvBin] names them.
func Bin(t testing.TB) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatalf("the programs cannot be built: %v", err)
	}
	return dir
}

// Cleanup removes programs that were built here; a TestMain may call it last.
func Cleanup() {
	if built := builtIn.Load(); built != nil {
		os.RemoveAll(*built)
	}
}

var (
	reportOnce sync.Once
	reported   host.Report
)

// report asks the host, once.
func report(t testing.TB) *host.Report {
	t.Helper()
	dir := Bin(t)
	reportOnce.Do(func() {
		reported = host.Probe(t.Context(), host.Options{Dir: dir, Build: buildOf(dir)})
	})
	return &reported
}

// NeedBoundary skips the test when this host cannot run the boundary, naming
// what the probe said.
func NeedBoundary(t testing.TB, b sandbox.Boundary) driver.Report {
	t.Helper()
	for _, r := range report(t).Boundaries {
		if r.Boundary != b {
			continue
		}
		if r.Available != driver.Yes {
			t.Skipf("probe: boundary %s: %s: %s", b, r.Available, r.Reason)
		}
		return r
	}
	t.Skipf("probe: boundary %s: not reported", b)
	return driver.Report{}
}

// Need skips the test unless the named check of the host (see package host)
// says yes.
func Need(t testing.TB, check string) {
	t.Helper()
	for _, c := range report(t).Checks {
		if c.Name == check {
			if c.Verdict != driver.Yes {
				t.Skipf("probe: %s: %s: %s", check, c.Verdict, c.Reason)
			}
			return
		}
	}
	t.Fatalf("no check is called %q", check)
}
