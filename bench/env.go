package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// env is one installation of Belljar for the benchmarks, with directories of
// its own, so that sandboxes of the machine's users are neither seen nor
// touched.
type env struct {
	bin    string // the three programs
	tools  string // programs of the benchmarks
	state  string
	rt     string
	dir    string
	rounds int // of each side of a comparison
	many   int // of create, exec, kill
	paused int // sandboxes at the same time
	live   int // sandboxes from one snapshot at the same time
}

func newEnv(ctx context.Context, bin string, rounds, many int) (*env, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	for _, p := range []string{"belljar", "belljar-engine", "belljar-guest"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			return nil, fmt.Errorf("%w (run make build)", err)
		}
	}
	// Paths of sockets are short: not beneath TMPDIR.
	dir, err := os.MkdirTemp("/tmp", "bjbench")
	if err != nil {
		return nil, err
	}
	e := &env{bin: bin, dir: dir, tools: filepath.Join(dir, "tools"), state: filepath.Join(dir, "s"), rt: filepath.Join(dir, "r"), rounds: rounds, many: many}
	for _, d := range []string{e.tools, e.state, e.rt} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := e.buildTool(ctx, "inside"); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close stops the daemon and removes the installation's directories.
func (e *env) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if c, err := client.Dial(ctx, client.Options{StateDir: e.state, RuntimeDir: e.rt, NoStart: true}); err == nil {
		_ = c.Stop(ctx, true)
		c.Close()
	}
	removeBareCgroups()
	return os.RemoveAll(e.dir)
}

// buildTool builds bench/NAME, static as the three programs are.
func (e *env) buildTool(ctx context.Context, name string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-p", "2", "-trimpath", "-o", e.tool(name), "github.com/belljar-sh/belljar/bench/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return nil
}

func (e *env) tool(name string) string { return filepath.Join(e.tools, name) }

// belljar prepares a command of the installation.
func (e *env) belljar(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(e.bin, "belljar"), args...)
	cmd.Env = append(os.Environ(), "BELLJAR_STATE_DIR="+e.state, "BELLJAR_RUNTIME_DIR="+e.rt)
	return cmd
}

// runQuiet runs a command; its output becomes part of an error.
func runQuiet(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out.Bytes())
	}
	return nil
}

// dial reaches the installation's daemon, which it starts.
func (e *env) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{StateDir: e.state, RuntimeDir: e.rt, Program: filepath.Join(e.bin, "belljar")})
}

// insidePath is where sandboxes get the program bench/inside.
const insidePath = "/tmp/inside"

// sandbox creates a sandbox with the inside program in it. The returned
// function kills it.
func (e *env) sandbox(ctx context.Context, c *client.Client, spec sandbox.Spec) (string, func(), error) {
	created, err := c.Create(ctx, spec, nil)
	if err != nil {
		return "", nil, unavailable(err)
	}
	id := string(created.Sandbox.ID)
	kill := func() { _, _ = c.Kill(context.WithoutCancel(ctx), id) }
	if err := e.putInside(ctx, c, id); err != nil {
		kill()
		return "", nil, err
	}
	return id, kill, nil
}

func (e *env) putInside(ctx context.Context, c *client.Client, id string) error {
	f, err := os.Open(e.tool("inside"))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = c.PutFile(ctx, id, insidePath, "", 0o755, f, st.Size())
	return err
}

// output runs a command inside and returns what it wrote to standard output.
func output(ctx context.Context, c *client.Client, id string, argv ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	exit, err := c.Exec(ctx, id, client.ExecOptions{Argv: argv, Streams: client.Streams{Stdout: &out, Stderr: &errs}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	if exit.Status() != 0 {
		return nil, fmt.Errorf("%s: exit code %d: %s", strings.Join(argv, " "), exit.Status(), errs.Bytes())
	}
	return out.Bytes(), nil
}

// unavailable turns the product's own "not on this host" into the harness's.
func unavailable(err error) error {
	if sandbox.KindOf(err) == sandbox.Unsupported {
		return fmt.Errorf("%w: probe: %w", harness.ErrUnavailable, err)
	}
	return err
}

// clean waits until nothing is left of what came after before, and returns
// what still is when time is up.
func (e *env) clean(ctx context.Context, before harness.Holdings, patience time.Duration) ([]string, error) {
	w := e.watched()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	var left harness.Holdings
	for {
		now, err := w.Take()
		if err != nil {
			return nil, err
		}
		if left == nil {
			left = now.Since(before)
		}
		if left = left.Still(now); len(left) == 0 {
			return nil, nil
		}
		select {
		case <-tick.C:
		case <-end:
			return left.Names(), nil
		case <-ctx.Done():
			return left.Names(), ctx.Err()
		}
	}
}

func (e *env) watched() harness.Watched {
	return harness.Watched{Programs: e.bin, Roots: []string{e.state, e.rt}}
}

// addLeft promises that nothing is left and names what is.
func addLeft(r *harness.Result, left []string) {
	r.AtMost("things left on the host", float64(len(left)), 0, "")
	for _, l := range left {
		r.Logf("left: %s", l)
	}
}
