package hostfilter

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install puts the filter on every thread of this process and, through them, on
// every process that it starts. It also sets no_new_privs, without which an
// ordinary user may not install a filter. Call it first in the boot and gofer
// roles, before gVisor's command runs; a role that executes itself again keeps
// it, and a second call then changes nothing.
//
// It returns an error when the filter is not in force afterwards: the role must
// not go on then.
func Install() error {
	if inForce() {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("hostfilter: no_new_privs: %w", err)
	}
	if err := set(build(nativeArch, slices.Concat(commonRules, nativeRules))); err != nil {
		return err
	}
	if !inForce() {
		return errors.New("hostfilter: the kernel took the filter and does not apply it")
	}
	return nil
}

// inForce tries one call that the filter refuses and that cannot succeed
// without it either: there is no descriptor -1.
func inForce() bool {
	return errors.Is(unix.Fchmod(-1, setID), unix.EPERM)
}

// set installs a program on all threads at once.
func set(insns []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(insns)
	switch {
	case errno != 0:
		return fmt.Errorf("hostfilter: seccomp: %w", errno)
	case tid != 0:
		return fmt.Errorf("hostfilter: thread %d could not take the filter", tid)
	}
	return nil
}
