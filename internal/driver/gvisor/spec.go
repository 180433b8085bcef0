package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/belljar-sh/belljar/internal/driver"
)

// GoferPlan tells the gofer role (package roles) what to put together before
// gVisor's code runs. Numbers are descriptors.
type GoferPlan struct {
	Shares []GoferShare `json:"shares"`
}

// GoferShare is the detached tree of a caller's directory or file.
type GoferShare struct {
	FD  int  `json:"fd"`
	Dir bool `json:"dir"`
}

// GoferPlanEnv names the environment variable that carries a [GoferPlan].
const GoferPlanEnv = "BELLJAR_GOFER_PLAN"

// GoferStage is the directory that the gofer role covers with a file system of
// its own, in its own mount namespace, to hold the trees until gVisor's code
// has taken them. It exists on every host.
const GoferStage = "/sys"

// GoferStageShare is where it attaches share n.
func GoferStageShare(n int) string { return GoferStage + shareName(n) }

// The guest's program lies in a directory of its own inside. gVisor could run it
// from a descriptor, but a sandbox whose PID 1 has such a program cannot be
// checkpointed.
const (
	guestDir  = "/.belljar"
	guestName = "belljar-guest"
)

// sentrySpec is what the sentry boots from.
func sentrySpec(req *driver.CreateRequest) *specs.Spec {
	nofile := uint64(req.Limits.OpenFiles)
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: req.Hostname,
		Root:     &specs.Root{Path: "/"},
		Process: &specs.Process{
			Args:         []string{guestDir + "/" + guestName},
			Cwd:          "/",
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			Capabilities: allCapabilities(),
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: nofile, Hard: nofile},
				// Not RLIMIT_NPROC: it counts by user, so a fork bomb of root's
				// would keep PID 1 from getting a thread, of which it dies. The
				// guest sets it in its children, which cannot raise it.
				{Type: "RLIMIT_CORE"},
			},
		},
		Mounts: []specs.Mount{
			{
				Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "nodev", "mode=1777", "size=" + strconv.FormatInt(shmSize(req), 10)},
			},
			{Destination: guestDir, Type: "bind", Source: guestDir, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		},
		Annotations: map[string]string{},
		Linux:       &specs.Linux{},
	}
}

// shmSize is half the memory, as on an ordinary host: shared memory counts
// against the memory limit.
func shmSize(req *driver.CreateRequest) int64 { return req.Limits.MemoryBytes / 2 }

// goferSpec is what the gofer reads, to which the shares are added. Its root is
// an empty one of its own: gVisor would make missing mount points in it.
func goferSpec() *specs.Spec {
	return &specs.Spec{
		Version:     specs.Version,
		Root:        &specs.Root{Path: "/"},
		Process:     &specs.Process{Args: []string{"-"}, Cwd: "/"},
		Annotations: map[string]string{},
		Linux:       &specs.Linux{},
	}
}

// writeSpec writes s as dir/name and opens it for a role.
func writeSpec(dir, name string, s *specs.Spec) (*os.File, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// allCapabilities is every capability there is. They hold inside the sandbox
// only: the sentry checks them against its own objects.
func allCapabilities() *specs.LinuxCapabilities {
	names := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE",
		"CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_CHROOT",
		"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
		"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_AUDIT_READ",
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}
