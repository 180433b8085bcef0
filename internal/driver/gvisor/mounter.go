package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// mounter is an operating system thread in a mount namespace of its own. Trees
// are put together there, cloned as a whole, and taken down again, so nothing
// is ever mounted in the namespace of the keeper or of a sandbox.
type mounter struct {
	work chan func() error
	done chan error
	mu   sync.Mutex
	ns   int   // the thread's own mount namespace
	lost error // why the thread is no longer in it
}

// workshop is where trees are put together: a directory that every host has.
const workshop = "/sys"

// newMounter starts the thread, which lives as long as the process.
func newMounter() (*mounter, error) {
	m := &mounter{work: make(chan func() error), done: make(chan error)}
	ready := make(chan error)
	go m.run(ready)
	return m, <-ready
}

// run serves the thread. The process's first thread must not be it: that one's
// namespace passes for the process's.
func (m *mounter) run(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		go m.run(ready)
		select {}
	}
	err := m.enter()
	ready <- err
	if err != nil {
		return // ends the thread, which is still locked
	}
	for f := range m.work {
		m.done <- f()
	}
}

func (m *mounter) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	// What the host mounts later is to be seen here, and nothing of ours there.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach from the host's mounts: %w", err)
	}
	ns, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	m.ns = ns
	return err
}

// do runs f on the thread.
func (m *mounter) do(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		return sandbox.Errorf(sandbox.Internal, "this keeper can start no more sandboxes: %w", m.lost)
	}
	m.work <- f
	return <-m.done
}

// assemble returns the root and what is laid over it as one detached,
// read-only tree. A descriptor of it leads nowhere else: it has no parent. With
// ns, owners on the root's disk are those of that user namespace.
func (m *mounter) assemble(r *driver.Root, ids idPlan, ns *os.File) (tree *os.File, err error) {
	err = m.do(func() error {
		tree, err = assemble(r, ids, ns)
		return err
	})
	return tree, err
}

func assemble(r *driver.Root, ids idPlan, ns *os.File) (_ *os.File, err error) {
	root, err := openTree(r.Path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if ns != nil {
		if err := idmap(root, ns); err != nil {
			return nil, err
		}
	}
	if err := unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, workshop, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, treeError("move_mount", r.Path, err)
	}
	defer func() {
		if uerr := unix.Unmount(workshop, unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("take %s down: %w", r.Path, uerr))
		}
	}()
	for _, b := range r.Binds {
		if err := lay(int(root.Fd()), b); err != nil {
			return nil, err
		}
	}
	if err := coverTmp(int(root.Fd()), ids); err != nil {
		return nil, err
	}
	return openTreeWhole(workshop)
}

// guestTree returns a detached, read-only tree that is a directory with the
// guest's program in it and nothing else.
func (m *mounter) guestTree(program string) (tree *os.File, err error) {
	err = m.do(func() error {
		tree, err = guestTree(program)
		return err
	})
	return tree, err
}

func guestTree(program string) (_ *os.File, err error) {
	dir, err := newTmpfs([2]string{"mode", "0555"}, [2]string{"size", "4k"})
	if err != nil {
		return nil, fmt.Errorf("tmpfs for the guest's program: %w", err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, guestName, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o555)
	if err != nil {
		return nil, fmt.Errorf("place for the guest's program: %w", err)
	}
	unix.Close(fd)
	if err := unix.MoveMount(dir, "", unix.AT_FDCWD, workshop, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, treeError("move_mount", "the guest's directory", err)
	}
	defer func() {
		if uerr := unix.Unmount(workshop, unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("take the guest's directory down: %w", uerr))
		}
	}()
	if err := lay(dir, driver.Bind{Source: program, Target: guestName}); err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the guest program cannot be opened: %w", err).
			WithField("guest", program).WithHint("install the programs together: make install")
	}
	return openTreeWhole(workshop)
}

// newTmpfs returns the detached mount of a new, empty file system.
func newTmpfs(options ...[2]string) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, opt := range options {
		if err := unix.FsconfigSetString(fs, opt[0], opt[1]); err != nil {
			return -1, fmt.Errorf("%s: %w", opt[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// lay puts a bind over its target, which is resolved inside root: a link in a
// template leads nowhere else.
func lay(root int, b driver.Bind) error {
	target, err := unix.Openat2(root, b.Target, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return fmt.Errorf("target %s in root: %w", b.Target, err)
	}
	defer unix.Close(target)
	tree, err := openTree(b.Source)
	if err != nil {
		return err
	}
	defer tree.Close()
	const flags = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(tree.Fd()), "", target, "", flags); err != nil {
		return treeError("move_mount", b.Source, err)
	}
	return nil
}

// coverTmp lays over an empty /tmp one that everybody may write to and that is
// not empty: over an empty one gVisor would mount a file system in memory, and
// what a program puts into /tmp would count against its memory.
func coverTmp(root int, ids idPlan) error {
	fd, err := unix.Openat2(root, "tmp", &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil // none, or none that can be read: gVisor makes one
	}
	tmp := os.NewFile(uintptr(fd), "tmp")
	defer tmp.Close()
	if names, err := tmp.Readdirnames(1); len(names) > 0 || err != io.EOF {
		return nil
	}
	mnt, err := sharedTmp(ids.UIDs[0].Outside, ids.GIDs[0].Outside)
	if err != nil {
		return fmt.Errorf("tmpfs for /tmp: %w", err)
	}
	defer unix.Close(mnt)
	return unix.MoveMount(mnt, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// sharedTmp makes a small file system with one directory in it, as on any Linux
// with a display, and returns its detached mount.
func sharedTmp(uid, gid uint32) (int, error) {
	mnt, err := newTmpfs([2]string{"mode", "1777"}, [2]string{"size", "64k"},
		[2]string{"uid", strconv.FormatUint(uint64(uid), 10)}, [2]string{"gid", strconv.FormatUint(uint64(gid), 10)})
	if err != nil {
		return -1, err
	}
	const name = ".X11-unix"
	err = errors.Join(unix.Mkdirat(mnt, name, 0o777), unix.Fchmodat(mnt, name, 0o1777, 0),
		unix.Fchownat(mnt, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW))
	if err != nil {
		unix.Close(mnt)
		return -1, err
	}
	return mnt, nil
}

// unmountProc takes /proc out of a sentry's root, where it needed it until its
// kernel was up and which nobody of its own could do without keeping the right
// to. The sentry must not have run guest code yet.
func (m *mounter) unmountProc(pid int) error {
	theirs, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(theirs)
	return m.do(func() (err error) {
		if err := unix.Setns(theirs, unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the sentry's mounts: %w", err)
		}
		defer func() {
			m.lost = unix.Setns(m.ns, unix.CLONE_NEWNS)
			err = errors.Join(err, m.lost)
		}()
		if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the sentry's /proc: %w", err)
		}
		if err := unix.Access("/proc/self", unix.F_OK); err != unix.ENOENT {
			return fmt.Errorf("the sentry's /proc is still there: %v", err)
		}
		return nil
	})
}
