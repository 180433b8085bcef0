package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A mode is who the keeper is. Tests of whole sandboxes run in each: as root
// directly, the others in a child in the namespaces in which an ordinary
// user's keeper lives.
type mode struct {
	name string
	maps []syscall.SysProcIDMap
}

// testUID is an ordinary user's id: nobody on this machine has it.
const testUID = 23456

var userModes = []mode{
	{"one id", []syscall.SysProcIDMap{{ContainerID: 0, HostID: testUID, Size: 1}}},
	{"subordinate ids", []syscall.SysProcIDMap{{ContainerID: 0, HostID: testUID, Size: 1}, {ContainerID: 1, HostID: 300000, Size: 65535}}},
}

const modeEnv = "BELLJAR_TEST_MODE"

// inModes runs f as root and, in children, as an ordinary user.
func inModes(t *testing.T, f func(t *testing.T)) {
	if os.Getenv(modeEnv) != "" {
		f(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("probe: not root, so the test cannot choose its ids")
	}
	t.Run("root", f)
	for _, m := range userModes {
		t.Run(m.name, func(t *testing.T) { m.runSelf(t) })
	}
}

// runSelf runs the calling test in a child that has the mode's ids.
func (m mode) runSelf(t *testing.T) {
	tmp := t.TempDir()
	openUp(tmp)
	if err := os.Chown(tmp, testUID, testUID); err != nil {
		t.Fatal(err)
	}
	parent := filepath.Dir(t.Name()) // the subtest's name is the mode's
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+parent+"$", "-test.v", "-test.timeout=300s")
	cmd.Env = append(os.Environ(), modeEnv+"="+m.name, "TMPDIR="+tmp, "HOME="+tmp,
		"BELLJAR_TEST_ENGINE="+testEngine, "BELLJAR_TEST_GUEST="+testGuest)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings:                m.maps,
		GidMappings:                m.maps,
		GidMappingsEnableSetgroups: len(m.maps) > 1,
		Credential:                 &syscall.Credential{NoSetGroups: len(m.maps) == 1},
		Pdeathsig:                  syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as %s: %v\n%s", m.name, err, out)
		return
	}
	if testing.Verbose() {
		fmt.Printf("--- as %s\n%s", m.name, out)
	}
}

// openUp lets everybody search a temporary directory.
func openUp(dir string) {
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
}
