package hostfilter

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_X86_64

// nativeRules are for the calls that newer architectures have only in their
// "at" form.
var nativeRules = []rule{
	modeAt(unix.SYS_CHMOD, 1),
	modeAt(unix.SYS_MKDIR, 1),
	modeAt(unix.SYS_CREAT, 1),
	{nr: unix.SYS_MKNOD, mode: 1, flags: -1, node: true},
	{nr: unix.SYS_OPEN, mode: 2, flags: 1},
}
