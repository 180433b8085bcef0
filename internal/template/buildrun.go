package template

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// buildIDs is the range of host ids that package scripts run with when root
// builds: the one after those of sandboxes, and like them nobody's.
const (
	buildIDs  = 0x7ffe0000
	buildSize = maxID + 1
)

// start starts mmdebstrap with its scratch space in w.
func (b *build) start(ctx context.Context, w *work) (*running, error) {
	ctx, cancel := context.WithCancel(ctx)
	run := &running{done: make(chan struct{}), kill: cancel}
	cmd, scratch, err := b.command(ctx, w)
	if err != nil {
		cancel()
		return nil, err
	}
	cmd.Stdin = strings.NewReader(b.sources)
	out, outW, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, storeError("pipe", err)
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		cancel()
		out.Close()
		outW.Close()
		return nil, storeError("pipe", err)
	}
	cmd.Stdout, cmd.Stderr, run.out = outW, errW, out
	started := make(chan error)
	go onThread(func() {
		err := coverTmp(scratch)
		if err == nil {
			err = cmd.Start()
		}
		outW.Close()
		errW.Close()
		started <- err
		if err == nil {
			run.err = b.wait(cmd, errR)
			close(run.done)
		}
		errR.Close()
	})
	if err := <-started; err != nil {
		cancel()
		out.Close()
		return nil, startError(err)
	}
	return run, nil
}

// onThread runs f on an operating system thread that ends with it, and that is
// not the process's first. The kernel ties the death signal of a child to the
// thread that started it, and f may give its thread a mount namespace.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f() // still locked at its end, so the thread goes
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// coverTmp gives the calling thread a mount namespace in which /tmp is the
// directory scratch; "" does nothing. That lies where only root may go: the ids
// of the build could not reach it by its path.
func coverTmp(scratch string) error {
	if scratch == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount(scratch, "/tmp", "", unix.MS_BIND, "")
}

// wait waits for the program and reads what it prints.
func (b *build) wait(cmd *exec.Cmd, stderr io.Reader) error {
	var t tail
	var reading sync.WaitGroup
	reading.Go(func() { t.read(stderr, b.log) })
	var err error
	if b.group != nil {
		err = b.group.wait()
	} else {
		err = cmd.Wait()
	}
	reading.Wait()
	if err == nil {
		return nil
	}
	return sandbox.Errorf(sandbox.Unavailable, "mmdebstrap failed: %s", t.reason()).WithCause(err).
		WithField("recipe", RecipeDebian).WithHint("see what it printed above; the host's apt must reach its sources")
}

// command returns the program to run: for root in a user namespace that is made
// here, for others mmdebstrap makes one from the caller's subordinate ids.
// Whichever it is, it is process 1 of a process namespace: nothing outlives it.
func (b *build) command(ctx context.Context, w *work) (cmd *exec.Cmd, scratch string, err error) {
	if !canChown() {
		cmd, err := b.userCommand(ctx)
		return cmd, "", err
	}
	scratch = w.path("scratch")
	// Open to the ids of the build, apt's own user among them; the directory
	// above keeps the host's users out.
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return nil, "", storeError("mkdir", err)
	}
	if err := os.Chown(scratch, buildIDs, buildIDs); err != nil {
		return nil, "", storeError("chown", err)
	}
	const script = `mount -t proc proc /proc && exec "$@"`
	cmd = exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh", b.program}, b.args("root")...)...)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: buildIDs, Size: buildSize}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0}, Pdeathsig: syscall.SIGKILL,
	}
	prepare(cmd, "/tmp")
	return cmd, scratch, nil
}

// prepare gives cmd an environment of its own, with the proxies that the
// caller's has.
func prepare(cmd *exec.Cmd, temp string) {
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LC_ALL=C.UTF-8",
		"TMPDIR=" + temp, "DEBIAN_FRONTEND=noninteractive",
	}
	for _, k := range []string{"http_proxy", "https_proxy", "no_proxy", "ftp_proxy"} {
		if v := os.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Cancel = func() error { return cmd.Process.Kill() }
}

func (b *build) userCommand(ctx context.Context) (*exec.Cmd, error) {
	if err := checkSubIDs(); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, b.program, b.args("unshare")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	prepare(cmd, os.TempDir()) // one that the subordinate ids can reach too
	// It removes its scratch space when it is asked to end; it has a moment.
	b.group = &group{cmd: cmd}
	cmd.Cancel = func() error { return b.group.signal(unix.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// checkSubIDs tells an ordinary user what is missing before mmdebstrap does.
func checkSubIDs() error {
	for _, p := range []string{"newuidmap", "newgidmap"} {
		if _, err := findProgram(p); err != nil {
			return sandbox.Errorf(sandbox.Unsupported, "%s is not installed", p).WithField("recipe", RecipeDebian).
				WithHint("apt-get install uidmap, or build as root")
		}
	}
	me, err := user.Current()
	if err != nil {
		return sandbox.Errorf(sandbox.Unsupported, "this user has no name: %w", err).WithField("recipe", RecipeDebian)
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return sandbox.Errorf(sandbox.Unsupported, "%s cannot be read: %w", file, err).WithField("recipe", RecipeDebian)
		}
		if !hasSubIDs(string(b), me.Username, me.Uid) {
			return sandbox.Errorf(sandbox.Unsupported, "user %s has no subordinate ids in %s", me.Username, file).
				WithField("recipe", RecipeDebian).
				WithHint("as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s; or build as root", me.Username)
		}
	}
	return nil
}

func hasSubIDs(text, name, uid string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Split(line, ":")
		if len(f) == 3 && (f[0] == name || f[0] == uid) {
			return true
		}
	}
	return false
}

func startError(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return sandbox.Errorf(sandbox.Unsupported, "this host does not let user namespaces be made: %w", err).
			WithField("recipe", RecipeDebian).WithHint("`belljar doctor` tells more; a root file system made elsewhere can be imported")
	}
	return sandbox.Errorf(sandbox.Unsupported, "mmdebstrap cannot be started: %w", err).WithField("recipe", RecipeDebian)
}

// tail remembers what a program printed last, and what it called an error.
type tail struct {
	last, fault string
}

// maxLine bounds one line of a build's output.
const maxLine = 4 << 10

func (t *tail) read(r io.Reader, log func(string)) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := br.ReadSlice('\n')
		if s := strings.TrimSpace(string(line)); s != "" {
			t.last = s
			if strings.HasPrefix(s, "E: ") && t.fault == "" {
				t.fault = strings.TrimPrefix(s, "E: ")
			}
			log(s)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (t *tail) reason() string {
	switch {
	case t.fault != "":
		return t.fault
	case t.last != "":
		return t.last
	}
	return "it said nothing"
}
