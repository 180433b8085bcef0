package guest

import (
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vfork is in assembly: a negative result is an error number.
func vfork() (pid int)

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// step is how far a child came.
type step uintptr

const (
	stepFork step = iota
	stepGroup
	stepSession
	stepLimits
	stepDescriptors
	stepTerminal
	stepUser
	stepCwd
	stepExec
)

// child is all that a new process needs between fork and exec, laid out before
// the fork because nothing may be allocated after it. The child shares our
// memory until it executes, so it reports failure by writing here.
type child struct {
	paths      []*byte // candidates for argv[0], in order
	argv       []*byte // ends in nil
	env        []*byte // ends in nil
	cwd        []*byte // candidates, the first that can be entered
	fds        [3]int  // 3 or above each
	cgroup     int     // writable cgroup.procs, or -1
	tty        bool    // descriptor 0 becomes the controlling terminal
	switchUser bool
	uid, gid   uintptr
	groups     []uint32
	limits     []rlimit
	zero       [2]byte

	// Written by the child.
	failed step
	errno  syscall.Errno
}

type rlimit struct {
	resource uintptr
	value    unix.Rlimit
}

// fork starts the child and returns when it has executed its program, or the
// step and error at which it failed.
func (c *child) fork() (pid int, at step, err error) {
	pid = c.vfork()
	runtime.KeepAlive(c)
	if pid < 0 {
		return 0, stepFork, syscall.Errno(-pid)
	}
	if c.errno != 0 {
		return pid, c.failed, c.errno
	}
	return pid, stepExec, nil
}

// vfork lets others run while this thread waits for the child to execute. The
// order is forced: beforeFork takes a lock on the thread, under which the
// runtime may not take the goroutine off it.
//
//go:noinline
//go:norace
//go:nosplit
func (c *child) vfork() int {
	entersyscallblock()
	beforeFork()
	pid := vfork()
	if pid == 0 {
		c.run()
	}
	afterFork()
	exitsyscall()
	return pid
}

// run is the child. It makes raw system calls only, allocates nothing and does
// not return.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func (c *child) run() {
	afterForkInChild()
	var e syscall.Errno
	last := syscall.ENOENT

	c.failed = stepGroup
	if c.cgroup >= 0 {
		if _, _, e = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.cgroup), uintptr(unsafe.Pointer(&c.zero[0])), 1); e != 0 {
			goto fail
		}
	}
	c.failed = stepSession
	if _, _, e = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		goto fail
	}
	c.failed = stepLimits
	for i := range c.limits {
		if _, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, c.limits[i].resource, uintptr(unsafe.Pointer(&c.limits[i].value)), 0, 0, 0); e != 0 && e != syscall.EPERM {
			goto fail
		}
	}
	c.failed = stepDescriptors
	for i := range c.fds {
		if _, _, e = syscall.RawSyscall(syscall.SYS_DUP3, uintptr(c.fds[i]), uintptr(i), 0); e != 0 {
			goto fail
		}
	}
	c.failed = stepTerminal
	if c.tty {
		if _, _, e = syscall.RawSyscall(syscall.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			goto fail
		}
	}
	// Everything else is closed on exec anyway; closed here it cannot be the
	// working directory either, as /proc/self/fd/7.
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, 1<<31-1, 0)
	c.failed = stepUser
	if c.switchUser {
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(c.groups))), 0); e != 0 {
			goto fail
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETRESGID, c.gid, c.gid, c.gid); e != 0 {
			goto fail
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETRESUID, c.uid, c.uid, c.uid); e != 0 {
			goto fail
		}
	}
	c.failed = stepCwd
	for i := range c.cwd {
		if _, _, e = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.cwd[i])), 0, 0); e == 0 {
			break
		}
	}
	if e != 0 {
		goto fail
	}
	c.failed = stepExec
	for i := range c.paths {
		_, _, e = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.paths[i])),
			uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.env[0])))
		switch e {
		case syscall.ENOENT, syscall.ENOTDIR:
			continue
		case syscall.EACCES:
			last = e // and look further, as a shell does
			continue
		}
		goto fail
	}
	e = last
fail:
	c.errno = e
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

// cstrings returns s as C strings, followed by nil.
func cstrings(s []string) ([]*byte, error) {
	out := make([]*byte, 0, len(s)+1)
	size := 0
	for _, v := range s {
		if strings.IndexByte(v, 0) >= 0 {
			return nil, unix.EINVAL
		}
		size += len(v) + 1
	}
	buf := make([]byte, size) // one block, zero filled
	for _, v := range s {
		n := copy(buf, v)
		out = append(out, &buf[0])
		buf = buf[n+1:]
	}
	return append(out, nil), nil
}
