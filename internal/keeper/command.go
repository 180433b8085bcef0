package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// daemonIdle is how long a keeper without lifeline stays when it has neither
// a sandbox nor a client.
const daemonIdle = 2 * time.Minute

// reapLimit bounds the reaping of one keeper's directory.
const reapLimit = 5 * time.Minute

// Report is the one line that a keeper or reaper writes to its status
// descriptor: that it serves (or has reaped), or why not.
type Report struct {
	OK    bool           `json:"ok"`
	Error *sandbox.Error `json:"error,omitempty"`
}

// flags are what keeper/launch passes; every FD is a descriptor number, -1 for
// none.
type flags struct {
	dir, kind                   string
	crash                       string
	lifeline, lock, socket, fds int
	status, mapped              int
	parentMounts                uint64
}

func parseFlags(name string, args []string) (*flags, error) {
	var f flags
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&f.dir, "dir", "", "the keeper's directory")
	fs.StringVar(&f.kind, "kind", "daemon", "daemon or run")
	fs.StringVar(&f.crash, "crash", "", "for tests: the crash point at which to die")
	fs.IntVar(&f.lifeline, "lifeline", -1, "descriptor whose end of file ends the keeper")
	fs.IntVar(&f.lock, "lock", -1, "descriptor of the locked lock file")
	fs.IntVar(&f.socket, "socket", -1, "descriptor of the listening main socket")
	fs.IntVar(&f.fds, "fds", -1, "descriptor of the listening socket for descriptors")
	fs.IntVar(&f.status, "status", -1, "descriptor for one line that tells success or failure")
	fs.IntVar(&f.mapped, "mapped", -1, "descriptor whose end of file says that user ids are mapped")
	fs.Uint64Var(&f.parentMounts, "parent-mounts", 0, "inode of the parent's mount namespace, which must not be ours")
	if err := fs.Parse(args); err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "%s: %w", name, err)
	}
	if f.dir == "" || fs.NArg() > 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "%s needs --dir and takes no arguments", name)
	}
	return &f, nil
}

// Command is `belljar-engine keeper`. It runs until SIGTERM, the end of ctx or
// of the lifeline. drivers is called once the namespaces are ready.
func Command(ctx context.Context, args []string, drivers func() ([]driver.Driver, error)) error {
	f, err := parseFlags("keeper", args)
	if err != nil {
		return err
	}
	status := inherited(f.status, "status")
	err = f.keep(ctx, status, drivers)
	if err != nil {
		tell(status, err)
	}
	return err
}

func (f *flags) keep(ctx context.Context, status *os.File, drivers func() ([]driver.Driver, error)) error {
	o := Options{
		Dir: f.dir, Kind: f.kind, Crash: CrashPoint(f.crash),
		Lifeline: inherited(f.lifeline, "lifeline"),
		Lock:     inherited(f.lock, "lock"),
		Ready:    func() { tell(status, nil) },
	}
	if o.Lifeline == nil {
		o.IdleExit = daemonIdle
	}
	var err error
	if o.Socket, err = inheritedListener(f.socket); err != nil {
		return err
	}
	if o.FDSocket, err = inheritedListener(f.fds); err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	if o.Drivers, err = drivers(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	return Run(ctx, o)
}

// ReapCommand is `belljar-engine reap`.
func ReapCommand(ctx context.Context, args []string, drivers func() ([]driver.Driver, error)) error {
	f, err := parseFlags("reap", args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reapLimit)
	defer cancel()
	status := inherited(f.status, "status")
	err = f.reap(ctx, drivers)
	tell(status, err)
	return err
}

func (f *flags) reap(ctx context.Context, drivers func() ([]driver.Driver, error)) error {
	lock := inherited(f.lock, "lock")
	if err := f.enter(); err != nil {
		return err
	}
	ds, err := drivers()
	if err != nil {
		return err
	}
	if lock == nil {
		return Reap(ctx, f.dir, ds)
	}
	defer lock.Close()
	if err := AdoptLock(lock, f.dir); err != nil {
		return err
	}
	return reapLocked(ctx, f.dir, ds)
}

// enter waits for the ids of a new user namespace and makes sure that no mount
// of ours can reach the host.
func (f *flags) enter() error {
	if m := inherited(f.mapped, "mapped"); m != nil {
		io.Copy(io.Discard, m)
		m.Close()
		if os.Geteuid() != 0 {
			return sandbox.Errorf(sandbox.Unsupported, "the user ids of the new namespace could not be mapped")
		}
	}
	if f.parentMounts == 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return sandbox.Errorf(sandbox.Unsupported, "cannot look at the mount namespace: %w", err).WithHint("is /proc mounted?")
	}
	if st.Ino == f.parentMounts {
		return sandbox.Errorf(sandbox.Internal, "the keeper is still in the mount namespace of its parent")
	}
	// Unmounts of the host's come in, so that we pin no file system of its;
	// nothing goes out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return sandbox.Errorf(sandbox.Unsupported, "mounting is refused in the new namespace: %w", err).
			WithHint("on Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root")
	}
	return nil
}

// inherited returns a descriptor that the parent passed, nil for none. It
// goes no further, and is polled, so that closing it ends a read.
func inherited(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	unix.SetNonblock(fd, true) // fails for a number that is no descriptor; its first use tells
	return os.NewFile(uintptr(fd), name)
}

func inheritedListener(fd int) (net.Listener, error) {
	f := inherited(fd, "socket")
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "descriptor %d is no listening socket: %w", fd, err)
	}
	return l, nil
}

// tell writes the one line of a status descriptor and closes it.
func tell(status *os.File, err error) {
	if status == nil {
		return
	}
	r := Report{OK: err == nil, Error: sandbox.AsError(err)}
	if r.Error != nil && r.Error.Message == "internal error" {
		r.Error = sandbox.Errorf(sandbox.Internal, "internal error: %v", errors.Unwrap(r.Error))
	}
	b, merr := json.Marshal(r)
	if merr == nil {
		status.Write(append(b, '\n')) // nobody may be reading any more
	}
	status.Close()
}
