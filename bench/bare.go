package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
)

// bundle is what runsc starts a sandbox from, as far as the benchmarks need it;
// its form is the OCI runtime specification's.
type bundle struct {
	Version  string        `json:"ociVersion"`
	Process  bundleProcess `json:"process"`
	Root     bundleRoot    `json:"root"`
	Hostname string        `json:"hostname"`
	Mounts   []bundleMount `json:"mounts"`
	Linux    bundleLinux   `json:"linux"`
}

type bundleProcess struct {
	Args []string   `json:"args"`
	Env  []string   `json:"env"`
	Cwd  string     `json:"cwd"`
	User bundleUser `json:"user"`
}

type bundleUser struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

type bundleRoot struct {
	Path     string `json:"path"`
	Readonly bool   `json:"readonly"`
}

type bundleMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

type bundleLinux struct {
	CgroupsPath string           `json:"cgroupsPath,omitempty"`
	Resources   *bundleResources `json:"resources,omitempty"`
}

type bundleResources struct {
	Memory struct {
		Limit int64 `json:"limit"`
	} `json:"memory"`
	CPU struct {
		Quota  int64  `json:"quota"`
		Period uint64 `json:"period"`
	} `json:"cpu"`
	Pids struct {
		Limit int64 `json:"limit"`
	} `json:"pids"`
}

// bareCgroup is the parent of the cgroups of bare sandboxes.
const bareCgroup = "belljar-bench"

// newBundle describes a sandbox that runs argv in root with Belljar's default
// limits.
func newBundle(name, root string, argv ...string) bundle {
	b := bundle{
		Version: "1.1.0",
		Process: bundleProcess{Args: argv, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Cwd: "/"},
		Root:    bundleRoot{Path: root},
		Mounts: []bundleMount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: bundleLinux{CgroupsPath: "/" + bareCgroup + "/" + name, Resources: &bundleResources{}},
	}
	res := b.Linux.Resources
	res.Memory.Limit = 1 << 30
	res.CPU.Period = 100000
	res.CPU.Quota = 2 * 100000
	res.Pids.Limit = 4096
	return b
}

// write puts the bundle into a directory of its own and returns that.
func (b bundle) write(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	data, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// runsc prepares `runsc run` of a bundle. Flags are those that Belljar's
// driver sets too.
func (e *env) runsc(ctx context.Context, bundleDir, id string, more ...string) *exec.Cmd {
	args := append([]string{"run", "--bundle", bundleDir}, more...)
	return e.runscCommand(ctx, append(args, id)...)
}

func (e *env) runscCommand(ctx context.Context, args ...string) *exec.Cmd {
	flags := []string{"--root", filepath.Join(e.dir, "runsc"), "--network=none", "--overlay2=root:memory"}
	cmd := exec.CommandContext(ctx, e.tool("runsc"), append(flags, args...)...)
	// It leaves a mount beneath its root; let that go with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// removeBareCgroups removes what runsc leaves of the cgroups of its sandboxes,
// on every hierarchy.
func removeBareCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + bareCgroup, "/sys/fs/cgroup/" + bareCgroup} {
		for _, sub := range []string{"/*", ""} {
			dirs, _ := filepath.Glob(pattern + sub) // the pattern is well formed
			for _, dir := range dirs {
				_ = os.Remove(dir) // not empty: somebody else's
			}
		}
	}
}

// needRunsc builds bench/runsc, once, and tells whether this user can run it.
func (e *env) needRunsc(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: probe: a bare runsc needs root", harness.ErrUnavailable)
	}
	if _, err := os.Stat(e.tool("runsc")); err == nil {
		return nil
	}
	return e.buildTool(ctx, "runsc")
}

// bareRoot is a root file system that holds the inside program and nothing
// else.
func (e *env) bareRoot() (string, error) {
	root := filepath.Join(e.dir, "bareroot")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	for _, d := range []string{"", "proc", "dev", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	data, err := os.ReadFile(e.tool("inside"))
	if err != nil {
		return "", err
	}
	return root, os.WriteFile(filepath.Join(root, "inside"), data, 0o755)
}

// bare is a sandbox without Belljar, whose only process serves one end of a
// socket pair.
type bare struct {
	cmd  *exec.Cmd
	conn net.Conn
}

// newBare starts one.
func (e *env) newBare(ctx context.Context) (*bare, error) {
	if err := e.needRunsc(ctx); err != nil {
		return nil, err
	}
	root, err := e.bareRoot()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	const name = "bare-channel"
	dir, err := newBundle(name, root, "/inside", "channel", "3").write(e.dir, name)
	if err != nil {
		return nil, err
	}
	b := &bare{cmd: e.runsc(ctx, dir, name, "--pass-fd=3:3"), conn: ours}
	b.cmd.ExtraFiles = []*os.File{theirs}
	b.cmd.Stderr = os.Stderr
	if err := b.cmd.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	return b, nil
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// Close ends the sandbox: its process ends with the channel.
func (b *bare) Close() error {
	b.conn.Close()
	err := b.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func (b *bare) ask(role byte, n int64) error {
	var head [9]byte
	head[0] = role
	binary.BigEndian.PutUint64(head[1:], uint64(n))
	_, err := b.conn.Write(head[:])
	return err
}

// toGuest sends a file's worth of bytes and waits for the answer.
func (b *bare) toGuest(context.Context) (time.Duration, error) {
	start := time.Now()
	if err := b.ask('r', fileBytes); err != nil {
		return 0, err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{b.conn}, zeros(fileBytes), make([]byte, 256<<10)); err != nil {
		return 0, err
	}
	var answer [1]byte
	_, err := io.ReadFull(b.conn, answer[:])
	return time.Since(start), err
}

// fromGuest receives as many.
func (b *bare) fromGuest(context.Context) (time.Duration, error) {
	start := time.Now()
	if err := b.ask('s', fileBytes); err != nil {
		return 0, err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(b.conn, fileBytes), make([]byte, 256<<10))
	return time.Since(start), err
}

// idle compares the memory of idle sandboxes with that of bare ones, both
// standing at the same time: all processes of the bare ones, and of ours with
// the keeper.
func (e *env) idle(ctx context.Context, r *harness.Result) error {
	if err := e.needRunsc(ctx); err != nil {
		return err
	}
	for _, n := range []int{1, 8} {
		ours, bare, err := e.idleOf(ctx, r, n)
		if err != nil {
			return err
		}
		name := "of " + strconv.Itoa(n) + " sandboxes, each"
		r.Add("bare, "+name, bare, "MiB PSS")
		r.Add("belljar, "+name, ours, "MiB PSS")
		r.AtMost("belljar above bare, "+name, ours-bare, 12, "MiB PSS")
	}
	return nil
}
