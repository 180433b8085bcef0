package sharefs

import (
	"errors"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"
)

// server is the extension of one gofer process. What it needs to know of the
// process it asks before gVisor's filter forbids to ask.
type server struct {
	procFD int // /proc/self/fd, or -1
	self   Owner
	made   *madeDirs
}

// Extension returns the file server for registration with gVisor's gofer
// (extension.Register), once per process and before the gofer command runs.
func Extension() extension.Extension {
	return &server{procFD: -1, made: newMadeDirs()}
}

// Name implements extension.Extension.
func (*server) Name() string { return "belljar-sharefs" }

// PrepareGofer opens the directory through which descriptors are opened again.
// gVisor calls it while /proc is there, and again after it executed itself.
func (s *server) PrepareGofer(extension.GoferPrepareContext) (extension.GoferPrepareResult, error) {
	fd, err := openProcFD(sandboxsetup.ProcFDBindMount, "/proc/self/fd")
	if err != nil {
		return extension.GoferPrepareResult{}, err
	}
	s.procFD = fd
	s.self = Owner{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}
	return extension.GoferPrepareResult{}, nil
}

// TryHandleMount takes the mounts that are shares. It refuses a writable mount
// that is none: a directory of the host that stock gVisor would serve as it is.
func (s *server) TryHandleMount(spec *specs.Spec, mount *specs.Mount, path string, readonly bool) (lisafs.ConnectionImpl, lisafs.ConnectionOpts, error) {
	none := lisafs.ConnectionOpts{}
	if mount == nil {
		return nil, none, nil // the root, whose changes stay in the sandbox
	}
	shares, err := sharesOf(spec)
	if err != nil {
		return nil, none, err
	}
	for _, sh := range shares {
		if sh.Source != mount.Source {
			continue
		}
		if s.procFD < 0 {
			return nil, none, errors.New("sharefs: /proc/self/fd was not opened in time")
		}
		sh.ReadOnly = sh.ReadOnly || readonly
		return newConn(sh, s.procFD, s.self, s.made), connOpts(sh), nil
	}
	if !readonly {
		return nil, none, fmt.Errorf("sharefs: the mount at %q is writable and not among the shares", path)
	}
	return nil, none, nil
}

// connOpts tells lisafs what our operations bear. All of them work on
// descriptors, so a file that was unlinked meanwhile is no danger.
func connOpts(sh Share) lisafs.ConnectionOpts {
	return lisafs.ConnectionOpts{
		Readonly:          sh.ReadOnly,
		WalkStatSupported: true,
		SetAttrOnDeleted:  true,
		AllocateOnDeleted: true,
		OpenOnDeleted:     true,
	}
}

// SeccompRules implements extension.Extension: every call that this package
// makes, with the narrowest arguments that a filter can see.
func (*server) SeccompRules() seccomp.SyscallRules {
	fd := seccomp.NonNegativeFD{}
	return seccomp.MakeSyscallRules(map[uintptr]seccomp.SyscallRule{
		unix.SYS_DUP:          seccomp.PerArg{fd},
		unix.SYS_FALLOCATE:    seccomp.PerArg{fd, seccomp.EqualTo(0)},
		unix.SYS_FCHMODAT:     seccomp.PerArg{fd},
		unix.SYS_FCHOWNAT:     seccomp.PerArg{fd, seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.AnyValue{}, seccomp.EqualTo(unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW)},
		unix.SYS_FGETXATTR:    seccomp.PerArg{fd},
		unix.SYS_FLISTXATTR:   seccomp.PerArg{fd},
		unix.SYS_FREMOVEXATTR: seccomp.PerArg{fd},
		unix.SYS_FSETXATTR:    seccomp.PerArg{fd},
		unix.SYS_FSTATFS:      seccomp.PerArg{fd},
		unix.SYS_FSYNC:        seccomp.PerArg{fd},
		unix.SYS_FTRUNCATE:    seccomp.PerArg{fd},
		unix.SYS_GETDENTS64:   seccomp.PerArg{fd},
		unix.SYS_LINKAT:       seccomp.PerArg{fd, seccomp.AnyValue{}, fd, seccomp.AnyValue{}, seccomp.EqualTo(unix.AT_SYMLINK_FOLLOW)},
		unix.SYS_LSEEK:        seccomp.PerArg{fd, seccomp.EqualTo(0), seccomp.EqualTo(0)},
		unix.SYS_MKDIRAT:      seccomp.PerArg{fd},
		unix.SYS_OPENAT:       seccomp.PerArg{fd},
		unix.SYS_OPENAT2:      seccomp.MatchAll{},
		unix.SYS_PREAD64:      seccomp.PerArg{fd},
		unix.SYS_PWRITE64:     seccomp.PerArg{fd},
		unix.SYS_READLINKAT:   seccomp.PerArg{fd},
		unix.SYS_RENAMEAT2:    seccomp.PerArg{fd, seccomp.AnyValue{}, fd},
		unix.SYS_STATX:        seccomp.PerArg{fd, seccomp.AnyValue{}, seccomp.MaskedEqual(unix.AT_EMPTY_PATH, unix.AT_EMPTY_PATH)},
		unix.SYS_SYMLINKAT:    seccomp.PerArg{seccomp.AnyValue{}, fd},
		unix.SYS_UNLINKAT:     seccomp.PerArg{fd},
		unix.SYS_UTIMENSAT:    seccomp.PerArg{fd},
	})
}
