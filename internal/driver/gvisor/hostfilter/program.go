package hostfilter

import (
	"math"

	"golang.org/x/sys/unix"
)

// setID are the bits that no file of the host may gain through us.
const setID = unix.S_ISUID | unix.S_ISGID

// mayCreate are the flags of open(2) with which its mode counts: O_CREAT and
// the bit that sets O_TMPFILE apart from O_DIRECTORY.
const mayCreate = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY

// A rule says when one system call fails. With both arguments negative it
// always fails.
type rule struct {
	nr    uint32
	mode  int  // index of the argument that holds a mode, or -1
	flags int  // index of open(2) flags that tell whether the mode counts, or -1
	node  bool // the mode holds a file type too, which must be regular
}

// always is a rule for a call that is never needed.
func always(nr uint32) rule { return rule{nr: nr, mode: -1, flags: -1} }

// modeAt is a rule for a call that takes a mode as its argument i.
func modeAt(nr uint32, i int) rule { return rule{nr: nr, mode: i, flags: -1} }

// commonRules hold on every architecture.
var commonRules = []rule{
	modeAt(unix.SYS_FCHMOD, 1),
	modeAt(unix.SYS_FCHMODAT, 2),
	modeAt(unix.SYS_FCHMODAT2, 2),
	modeAt(unix.SYS_MKDIRAT, 2),
	{nr: unix.SYS_MKNODAT, mode: 2, flags: -1, node: true},
	{nr: unix.SYS_OPENAT, mode: 3, flags: 2},
	always(unix.SYS_SETXATTR),
	always(unix.SYS_LSETXATTR),
	always(unix.SYS_SETXATTRAT),
	always(unix.SYS_REMOVEXATTR),
	always(unix.SYS_LREMOVEXATTR),
	always(unix.SYS_REMOVEXATTRAT),
	always(unix.SYS_IO_URING_ENTER),
}

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// x32Bit marks system call numbers of the x32 ABI, which reports the
// architecture of amd64.
const x32Bit = 0x40000000

var (
	retAllow = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	retEPERM = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
)

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// loadArg loads the low half of an argument: no mode or flag reaches further.
// Both supported architectures are little-endian.
func loadArg(i int) unix.SockFilter { return load(offArgs + 8*uint32(i)) }

// jump skips yes or no instructions after a test of the accumulator with k.
func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

// body is what a rule does once its call is known. It always returns.
func (r rule) body() []unix.SockFilter {
	if r.mode < 0 {
		return []unix.SockFilter{retEPERM}
	}
	var out []unix.SockFilter
	if r.flags >= 0 {
		out = append(out, loadArg(r.flags), jump(unix.BPF_JSET, mayCreate, 1, 0), retAllow)
	}
	out = append(out, loadArg(r.mode), jump(unix.BPF_JSET, setID, 0, 1), retEPERM)
	if r.node {
		out = append(out,
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: unix.S_IFMT},
			jump(unix.BPF_JEQ, unix.S_IFREG, 2, 0),
			jump(unix.BPF_JEQ, 0, 1, 0),
			retEPERM)
	}
	return append(out, retAllow)
}

// build makes the program. A call without a rule passes after one comparison
// per rule: the stubs in which guests run inherit the filter.
func build(arch uint32, rules []rule) []unix.SockFilter {
	out := []unix.SockFilter{
		load(offArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		retEPERM,
		load(offNr),
		jump(unix.BPF_JGE, x32Bit, 0, 1),
		retEPERM,
	}
	for _, r := range rules {
		body := r.body()
		if len(body) > math.MaxUint8 {
			panic("hostfilter: a rule is too long for a jump")
		}
		out = append(out, jump(unix.BPF_JEQ, r.nr, 0, uint8(len(body))))
		out = append(out, body...)
	}
	return append(out, retAllow)
}
