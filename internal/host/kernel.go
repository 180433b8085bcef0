package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of checks that boundaries refer to.
const (
	CheckKernel   = "kernel"
	CheckUserNS   = "user namespaces"
	CheckAppArmor = "AppArmor restriction"
	CheckSeccomp  = "seccomp"
	CheckLandlock = "Landlock"
)

// minKernel is the oldest release whose interfaces the gvisor boundary and
// the keeper use (close_range and CLOEXEC ranges, openat2, pidfd).
var minKernel = [2]int{5, 11}

func getuid() int { return os.Getuid() }

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func kernelChecks() []driver.Check {
	return []driver.Check{
		kernelCheck(kernelRelease()),
		userNSCheck(),
		appArmorCheck("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", getuid()),
		seccompCheck(),
		landlockCheck(),
	}
}

func kernelCheck(release string) driver.Check {
	major, minor, ok := parseRelease(release)
	if !ok {
		return unsure(CheckKernel, fmt.Sprintf("release %q has an unknown form", release), "")
	}
	if major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return no(CheckKernel, fmt.Sprintf("%s is older than %d.%d", release, minKernel[0], minKernel[1]),
			fmt.Sprintf("run a kernel of %d.%d or later", minKernel[0], minKernel[1]))
	}
	return yes(CheckKernel, release)
}

func parseRelease(s string) (major, minor int, ok bool) {
	a, rest, found := strings.Cut(s, ".")
	if !found {
		return 0, 0, false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(rest)
	return major, minor, err1 == nil && err2 == nil
}

// userNSCheck makes a user namespace with a mount, pid and network namespace
// and uses a capability in it: the child calls chroot("/"), which needs
// CAP_SYS_CHROOT there, and then fails to execute a file that does not exist.
// Reaching that failure proves all of it; AppArmor's restriction shows as
// EPERM or EACCES from chroot.
func userNSCheck() driver.Check {
	const missing = "/proc/self/fdinfo/belljar-probe"
	cmd := exec.Command(missing)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Chroot:      "/",
	}
	err := cmd.Start()
	if err == nil {
		cmd.Process.Kill()
		cmd.Wait()
		return unsure(CheckUserNS, "the probe ran a file that should not exist", "")
	}
	return userNSVerdict(err)
}

func userNSVerdict(err error) driver.Check {
	switch {
	case errors.Is(err, unix.ENOENT):
		return yes(CheckUserNS, "one was made, with capabilities in it")
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return no(CheckUserNS, "the kernel refused: "+errno(err),
			"as root: sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 (those that exist); in a container, run it with a seccomp profile that allows unshare")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return no(CheckUserNS, "the limit of user namespaces is reached: "+errno(err),
			"as root: sysctl -w user.max_user_namespaces=15000")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return no(CheckUserNS, "this kernel has none: "+errno(err), "run a kernel with CONFIG_USER_NS")
	}
	return unsure(CheckUserNS, "the probe failed: "+errno(err), "")
}

func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}

func appArmorCheck(path string, uid int) driver.Check {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return yes(CheckAppArmor, "this kernel does not restrict user namespaces by AppArmor")
	case err != nil:
		return unsure(CheckAppArmor, errno(err), "")
	case strings.TrimSpace(string(b)) == "0":
		return yes(CheckAppArmor, "the restriction of user namespaces is off")
	case uid == 0:
		return yes(CheckAppArmor, "the restriction is on and does not bind root")
	}
	return no(CheckAppArmor, "AppArmor takes all capabilities away from unprivileged user namespaces",
		"install an AppArmor profile with `userns,` for belljar-engine, or as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
}

func seccompCheck() driver.Check {
	b, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	mode, modeErr := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	switch {
	case modeErr == nil && mode == 2:
		return yes(CheckSeccomp, "filters work; this process is under one already")
	case err == nil && strings.Contains(string(b), "trap"):
		return yes(CheckSeccomp, "filters work")
	case modeErr != nil:
		return no(CheckSeccomp, "this kernel has none: "+errno(modeErr), "run a kernel with CONFIG_SECCOMP_FILTER")
	}
	return unsure(CheckSeccomp, "the kernel does not tell which actions it has", "")
}

func landlockCheck() driver.Check {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	switch e {
	case 0:
		return yes(CheckLandlock, fmt.Sprintf("ABI %d", abi))
	case unix.ENOSYS:
		return no(CheckLandlock, "this kernel has none", "run a kernel with CONFIG_SECURITY_LANDLOCK")
	case unix.EOPNOTSUPP:
		return no(CheckLandlock, "it is built in and not started", "add landlock to the lsm= parameter of the kernel")
	}
	return unsure(CheckLandlock, e.Error(), "")
}
