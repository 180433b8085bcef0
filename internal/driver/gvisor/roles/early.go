package roles

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropSetPCap gives up CAP_SETPCAP on every thread.
//
// gVisor drops each capability that it does not need from the bounding set of
// every thread, and skips that when it may not: some 40 calls for each of which
// the whole process stops, which took a third of the time to boot. A bounding
// set matters only where execve can grant what it holds; with no_new_privs, set
// before on every thread, execve grants nothing that the process has not got.
// What the process has got gVisor still reduces itself.
func dropSetPCap() error {
	hdr := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(hdr, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	caps[0].Effective &^= 1 << unix.CAP_SETPCAP
	caps[0].Permitted &^= 1 << unix.CAP_SETPCAP
	caps[0].Inheritable &^= 1 << unix.CAP_SETPCAP
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(hdr)), uintptr(unsafe.Pointer(&caps[0])), 0)
	runtime.KeepAlive(hdr)
	runtime.KeepAlive(&caps)
	if errno != 0 {
		return fmt.Errorf("give up CAP_SETPCAP: %w", errno)
	}
	return nil
}

// While it starts, a process's heap is all new and worth keeping: collections find
// nothing, yet take several milliseconds each.
const (
	startPhase = 2 * time.Second
	startHeap  = 64 << 20 // bytes, above which there are collections even then
	gcPercent  = 100      // Go's default, from then on
)

// DeferGC puts off garbage collection until the process has started. Then it
// gives back what only the start needed: garbage, and the pages of the program
// that nothing but the init functions of its packages have touched, which are
// most of its code.
func DeferGC() {
	pages := ownPages()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startHeap)
	time.AfterFunc(startPhase, func() {
		debug.SetGCPercent(gcPercent)
		debug.SetMemoryLimit(math.MaxInt64)
		debug.FreeOSMemory()
		drop(pages)
	})
}
