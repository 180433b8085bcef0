package guest

import (
	"runtime"
	"syscall"
	"unsafe"
)

const unchanged = ^uintptr(0)

// as runs f with the rights of id, on one thread: what f may open, make or
// remove is decided by the kernel as for any process of that user. The real
// user stays root, so the thread takes its rights back afterwards; if it
// cannot, the guest ends, because nothing that it does from then on would have
// the rights it should.
func (s *Server) as(id identity, f func() error) error {
	if !s.root || id.uid == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer regain()
	if err := assume(id); err != nil {
		return err
	}
	return f()
}

// The system calls are raw on purpose: those of package syscall change every
// thread.
func assume(id identity) error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(id.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(id.groups))), 0); e != 0 {
		return fsError("user", id.name, e)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, unchanged, uintptr(id.gid), unchanged); e != 0 {
		return fsError("user", id.name, e)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, unchanged, uintptr(id.uid), unchanged); e != 0 {
		return fsError("user", id.name, e)
	}
	return nil
}

func regain() {
	_, _, e1 := syscall.RawSyscall(syscall.SYS_SETRESUID, unchanged, 0, unchanged)
	_, _, e2 := syscall.RawSyscall(syscall.SYS_SETRESGID, unchanged, 0, unchanged)
	_, _, e3 := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
	if e1 != 0 || e2 != 0 || e3 != 0 {
		panic("guest: a thread could not take its rights back")
	}
}
