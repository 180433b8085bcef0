package gvisor

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/precompiled"
)

// TestPrecompiledIsUsed: sentry and gofer, with the options that they really
// have, find the seccomp programs that were built ahead.
func TestPrecompiledIsUsed(t *testing.T) {
	if precompiled.Sentry == nil {
		t.Skip("probe: no programs were generated for this architecture")
	}
	logs := t.TempDir()
	d, err := New(Options{Engine: testEngine, DebugDir: logs})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	req := request(t)
	req.Mounts = []driver.Mount{{File: dir, Target: "/mnt"}}
	start(t, d, req)
	for _, role := range []string{"boot", "gofer"} {
		b, err := os.ReadFile(filepath.Join(logs, string(req.ID)+"."+role+".log"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, []byte("Loaded precompiled seccomp instructions")) {
			t.Errorf("%s built its own program", role)
		}
	}
}
