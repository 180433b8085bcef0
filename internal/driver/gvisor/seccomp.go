package gvisor

import "unsafe"

// secRetTrap is SECCOMP_RET_TRAP of the kernel.
const secRetTrap = 0x00030000

// trapAction is the argument that asks the kernel about SECCOMP_RET_TRAP.
func trapAction() uintptr {
	action := uint32(secRetTrap)
	return uintptr(unsafe.Pointer(&action))
}
