#include "textflag.h"

// func vfork() (pid int)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD). The return address is in the link
// register, which the system call keeps for the parent and the child alike.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-8
	MOVD	$0x4111, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8
	SVC
	MOVD	R0, pid+0(FP)
	RET
