package fake

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// markName is the variable by which every process of an instance is found.
const markName = "BELLJAR_FAKE"

func markOf(id sandbox.ID) string { return markName + "=" + string(id) }

func cpus() int { return runtime.NumCPU() }

// here is a guest in this process.
type here struct{ cancel func() }

// serveHere runs the guest until Kill; life outlasts the call of Start.
func (in *instance) serveHere(life context.Context) runner {
	ctx, end := context.WithCancel(life)
	cancel := func() { // as the death of a process would
		end()
		in.inside.Down.Close()
		in.inside.Up.Close()
	}
	d, id := in.d, in.handle.ID
	d.mu.Lock()
	d.here[id] = here{cancel}
	d.mu.Unlock()
	go func() {
		defer end()
		defer func() {
			d.mu.Lock()
			delete(d.here, id)
			d.mu.Unlock()
		}()
		code := in.d.opts.Serve(ctx, in.inside.Down, in.inside.Up)
		in.inside.Down.Close()
		in.inside.Up.Close()
		switch {
		case ctx.Err() != nil:
			in.end(sandbox.Exit{Code: -1, Signal: int(unix.SIGKILL)})
		case code == ExitOOM:
			in.end(sandbox.Exit{Code: -1, Signal: int(unix.SIGKILL), OOM: true, Reason: "oom"})
		default:
			in.end(sandbox.Exit{Code: code})
		}
	}()
	return here{cancel}
}

func (h here) kill(context.Context) error {
	h.cancel()
	return nil
}

func (h here) stats() (sandbox.Stats, error) { return sandbox.Stats{}, nil }

// child is a guest in a process of its own.
type child struct {
	mark string
	pid  int
}

// spawn runs the guest program with the channels as descriptors 3 and 4. The
// thread that starts it lives as long as it does: its death would end the
// child too.
func (in *instance) spawn(life context.Context) (runner, error) {
	down, err := connFile(in.inside.Down)
	if err != nil {
		return nil, err
	}
	defer down.Close()
	up, err := connFile(in.inside.Up)
	if err != nil {
		return nil, err
	}
	defer up.Close()
	cmd := exec.Command(in.guest)
	cmd.Env = []string{markOf(in.handle.ID), memoryEnv + "=" + MemoryFile, fileEnv + "=" + FilesFile}
	cmd.Dir = in.handle.Dir
	cmd.ExtraFiles = []*os.File{down, up}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			in.await(life, cmd)
		}
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "cannot run the guest: %w", err).WithField("guest", in.guest)
	}
	in.inside.Down.Close()
	in.inside.Up.Close()
	return &child{mark: markOf(in.handle.ID), pid: cmd.Process.Pid}, nil
}

func connFile(c net.Conn) (*os.File, error) {
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot pass a channel: %w", err)
	}
	return f, nil
}

func (in *instance) await(life context.Context, cmd *exec.Cmd) {
	cmd.Wait() // how it ended is in ProcessState
	ws := cmd.ProcessState.Sys().(interface {
		Signaled() bool
		Signal() unix.Signal
		ExitStatus() int
	})
	// PID 1 is gone, so nothing of the sandbox may live on.
	killMarked(life, markOf(in.handle.ID))
	if ws.Signaled() {
		in.end(sandbox.Exit{Code: -1, Signal: int(ws.Signal())})
		return
	}
	in.end(sandbox.Exit{Code: ws.ExitStatus()})
}

func (c *child) kill(ctx context.Context) error { return killMarked(ctx, c.mark) }

// stats reads what the kernel counts for the first process.
func (c *child) stats() (sandbox.Stats, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(c.pid) + "/stat")
	if err != nil {
		return sandbox.Stats{}, nil // it has ended
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 22 {
		return sandbox.Stats{}, nil
	}
	num := func(i int) int64 {
		n, _ := strconv.ParseInt(f[i], 10, 64) // the kernel writes numbers
		return n
	}
	const ticksPerSec = 100
	return sandbox.Stats{
		CPUTime:     time.Duration(num(11)+num(12)) * time.Second / ticksPerSec,
		MemoryBytes: num(21) * int64(os.Getpagesize()),
		Tasks:       num(17),
	}, nil
}

// killMarked kills every process whose environment has mark, until a look
// finds none.
func killMarked(ctx context.Context, mark string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, err := marked(mark)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return sandbox.Errorf(sandbox.DeadlineExceeded, "%d processes have not ended", len(pids)).WithCause(ctx.Err())
		}
	}
}

// marked lists the processes that carry mark. Dead ones have no environment
// left; another user's cannot be read and are none of ours.
func marked(mark string) ([]int, error) {
	envs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot list processes: %w", err)
	}
	var pids []int
	for _, path := range envs {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
