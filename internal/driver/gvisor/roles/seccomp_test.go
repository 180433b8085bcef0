package roles

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/precompiled"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/sharefs"
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

// goferOptions are those with which the driver's gofers install theirs.
func goferOptions() gofer.Options {
	return gofer.Options{DirectFS: true, LisafsNeeded: true, ExtraRules: []seccomp.SyscallRules{sharefs.Extension().SeccompRules()}}
}

// TestPrecompiledIsFresh: the programs in the source are, byte for byte, those
// that this gVisor builds, in this process and in the first one of a PID
// namespace, which sentry and gofer are.
func TestPrecompiledIsFresh(t *testing.T) {
	if precompiled.Sentry == nil || precompiled.Gofer == nil {
		t.Skipf("probe: no programs were generated for %s", runtime.GOARCH)
	}
	addSentryProgram()
	addGoferProgram()
	opts, gopts := ourOptions(t), goferOptions()
	if strings.Contains(opts.ConfigKey(), "Instrumentation=true") {
		t.Skip("probe: built with the race detector, for which gVisor's own programs are others")
	}
	got, ok := filter.GetPrecompiled(opts.ConfigKey())
	if !ok {
		t.Fatalf("gVisor does not find %s among %v", opts.ConfigKey(), filter.ListPrecompiled())
	}
	rules, deny := config.Rules(opts)
	fresh(t, "sentry", got, opts.Vars(), rules, deny, config.SeccompOptions(opts))
	got, ok = goferfilter.GetPrecompiled(gopts.ConfigKey())
	if !ok {
		t.Fatalf("gVisor does not find %s among %v", gopts.ConfigKey(), goferfilter.ListPrecompiled())
	}
	rules, deny = gofer.Rules(gopts)
	fresh(t, "gofer", got, gopts.Vars(), rules, deny, seccomp.ProgramOptions{})
	if os.Getpid() != 1 {
		asFirstProcess(t)
	}
}

// fresh compares a precompiled program with one that is built here.
func fresh(t *testing.T, name string, got precompiledseccomp.Program, vars precompiledseccomp.Values, rules, deny seccomp.SyscallRules, o seccomp.ProgramOptions) {
	t.Helper()
	gotCode, err := got.RenderInstructions(vars)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := syscall.Syscall(unix.SYS_SECCOMP, 2, 0, 0); errno == syscall.ENOSYS {
		o.DefaultAction = seccomp.KillProcess // an emulator of user programs, whose kernel cannot be asked
	}
	prog := seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}}, Options: o}
	wantCode, _, err := prog.Build()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(bpf.ToBytecode(gotCode), bpf.ToBytecode(wantCode)) {
		t.Errorf("as process %d, the precompiled program of the %s differs from a fresh one: run go generate in package precompiled", os.Getpid(), name)
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
	addSentryProgram()
	addGoferProgram()
	opts := ourOptions(t)
	opts.HostNetwork = true
	if _, ok := filter.GetPrecompiled(opts.ConfigKey()); ok {
		t.Errorf("a program for %s", opts.ConfigKey())
	}
	for _, change := range []func(*gofer.Options){
		func(o *gofer.Options) { o.ExtraRules = nil },
		func(o *gofer.Options) { o.UDSOpenEnabled = true },
		func(o *gofer.Options) { o.LisafsNeeded = false },
	} {
		o := goferOptions()
		change(&o)
		if _, ok := goferfilter.GetPrecompiled(o.ConfigKey()); ok {
			t.Errorf("a program for %s", o.ConfigKey())
		}
	}
}
