package roles

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/precompiled"
)

// ourOptions are the options with which the driver's sentries install their
// filter.
func ourOptions(t *testing.T) config.Options {
	t.Helper()
	p, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	return config.Options{Platform: p.PrecompiledSeccompInfo()[0], HostFilesystem: true, ControllerFD: 17}
}

// TestPrecompiledIsFresh: the program in the source is, byte for byte, the one
// that this gVisor builds, in this process and in the first one of a PID
// namespace, which a sentry is.
func TestPrecompiledIsFresh(t *testing.T) {
	if len(precompiled.Programs) == 0 {
		t.Skipf("probe: no program was generated for %s", runtime.GOARCH)
	}
	opts := ourOptions(t)
	if strings.Contains(opts.ConfigKey(), "Instrumentation=true") {
		t.Skip("probe: built with the race detector, for which gVisor's own program is another")
	}
	addPrograms()
	got, ok := filter.GetPrecompiled(opts.ConfigKey())
	if !ok {
		t.Fatalf("gVisor does not find %s among %v", opts.ConfigKey(), filter.ListPrecompiled())
	}
	gotCode, err := got.RenderInstructions(opts.Vars())
	if err != nil {
		t.Fatal(err)
	}
	rules, deny := config.Rules(opts)
	fresh := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}},
		Options:  config.SeccompOptions(opts),
	}
	wantCode, _, err := fresh.Build()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(bpf.ToBytecode(gotCode), bpf.ToBytecode(wantCode)) {
		t.Errorf("as process %d, the precompiled program differs from a fresh one: run go generate in package precompiled", os.Getpid())
	}
	if os.Getpid() != 1 {
		asFirstProcess(t)
	}
}

// asFirstProcess runs the calling test in a PID namespace of its own.
func asFirstProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skip("probe: no user namespace: ", err)
	}
	if err != nil {
		t.Errorf("as the first process of a namespace: %v\n%s", err, out)
	}
}

// TestOtherOptionsMiss: options for which there is no program are not given
// another's.
func TestOtherOptionsMiss(t *testing.T) {
	addPrograms()
	opts := ourOptions(t)
	opts.HostNetwork = true
	if _, ok := filter.GetPrecompiled(opts.ConfigKey()); ok {
		t.Errorf("a program for %s", opts.ConfigKey())
	}
}
