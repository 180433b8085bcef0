package guest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The guest runs Go code on one thread at a time (see the program's main):
// behind gVisor every hand-over between threads is dear. A system call that is
// known to block therefore gives the place up before it begins; left to
// itself the runtime notices after up to ten milliseconds.

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// waitChild waits for any child to end and reaps it.
//
//go:norace
//go:nosplit
func waitChild(ws *uint32) (pid int, errno syscall.Errno) {
	entersyscallblock()
	r, _, e := syscall.RawSyscall6(syscall.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(ws)), unix.WALL, 0, 0, 0)
	exitsyscall()
	return int(r), e
}
