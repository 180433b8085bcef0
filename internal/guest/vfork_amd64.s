#include "textflag.h"

// func vfork() (pid int)
//
// clone(CLONE_VM|CLONE_VFORK|SIGCHLD). Child and parent return one after the
// other through the same stack: the child's calls overwrite the return address,
// so it is carried across in a register.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-8
	MOVQ	$0x4111, DI
	XORL	SI, SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$56, AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	MOVQ	AX, pid+0(FP)
	RET
