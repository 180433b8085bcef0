package testenv

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildOf asks the programs in dir for their build.
func buildOf(dir string) string {
	out, err := exec.Command(filepath.Join(dir, "belljar"), "version").Output()
	if err != nil {
		return ""
	}
	f := strings.Fields(string(out))
	if len(f) == 0 {
		return ""
	}
	return f[len(f)-1]
}

// Env is one test's installation: its own state, sockets and daemon.
type Env struct {
	t     testing.TB
	Bin   string
	State string
	Run   string
	Home  string
	base  string
	uid   uint32 // of an ordinary user; 0: the test's own
}

// AsUser has everything in e run as an ordinary user of this number, and skips
// the test where that cannot be.
func (e *Env) AsUser(uid uint32) {
	e.t.Helper()
	if os.Geteuid() != 0 {
		e.t.Skip("probe: user: only root can act for another user")
	}
	if err := filepath.WalkDir(e.base, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, int(uid), int(uid)))
	}); err != nil {
		e.t.Fatal(err)
	}
	e.uid = uid
	if r := e.Belljar("doctor", "-o", "json"); r.Code != 0 {
		e.t.Skipf("probe: doctor as user %d: %s%s", uid, r.Stderr, r.Stdout)
	}
}

// Own gives a file to the user that e runs as.
func (e *Env) Own(path string) {
	e.t.Helper()
	if e.uid == 0 {
		return
	}
	if err := filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, int(e.uid), int(e.uid)))
	}); err != nil {
		e.t.Fatal(err)
	}
}

// UID is the user that programs in e run as.
func (e *Env) UID() int {
	if e.uid != 0 {
		return int(e.uid)
	}
	return os.Geteuid()
}

// New returns an installation of the test's own. When the test ends its daemon
// is stopped with all sandboxes, and it is an error when anything is left.
func New(t testing.TB) *Env {
	t.Helper()
	// Socket paths are short: t.TempDir names the test.
	base, err := os.MkdirTemp("", "bj-")
	if err != nil {
		t.Fatal(err)
	}
	e := &Env{t: t, Bin: Bin(t), State: filepath.Join(base, "state"), Run: filepath.Join(base, "run"), Home: filepath.Join(base, "home"), base: base}
	if err := os.Mkdir(e.Home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Stop()
		os.RemoveAll(base)
	})
	return e
}

// Stop ends the daemon with all sandboxes and checks that no keeper is left.
func (e *Env) Stop() {
	if _, err := os.Stat(e.Run); err != nil {
		return
	}
	e.Belljar("kill", "--all") // starts a daemon again that was killed
	if r := e.Belljar("daemon", "stop", "--kill"); r.Code != 0 {
		e.t.Errorf("the daemon did not stop: %+v", r)
	}
	began, swept := time.Now(), false
	for end := began.Add(leftoverTime); ; {
		left, _ := filepath.Glob(filepath.Join(e.Run, "keepers", "[^.]*")) // the pattern is well formed; a dot begins what never became a keeper's, and goes after a minute
		if len(left) == 0 {
			return
		}
		if !swept && time.Since(began) > sweepAfter {
			// What a program of ours that was killed has left is the next
			// run's to remove; a keeper that lives is not.
			swept = true
			e.Belljar("run", "--", "true")
			continue
		}
		if time.Now().After(end) {
			e.t.Errorf("left behind: %v", left)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// leftoverTime is what keepers whose owner was killed need to end by
// themselves.
const leftoverTime = 15 * time.Second

// sweepAfter is when what is left counts as left by the dead.
const sweepAfter = 3 * time.Second

// Environ is what programs run with: nothing of the test's own environment but
// PATH.
func (e *Env) Environ() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + e.Home, "TMPDIR=" + os.TempDir(),
		"BELLJAR_STATE_DIR=" + e.State, "BELLJAR_RUNTIME_DIR=" + e.Run,
	}
}

// Result is how a program ended.
type Result struct {
	Stdout, Stderr string
	Code           int
	Took           time.Duration
}

// limit ends a program that hangs: well within a package's time.
const limit = 3 * time.Minute

// Command returns a belljar command that has not been started.
func (e *Env) Command(args ...string) *exec.Cmd {
	return e.Program(filepath.Join(e.Bin, "belljar"), args...)
}

// Program returns any command in the test's environment, killed after some
// minutes.
func (e *Env) Program(name string, args ...string) *exec.Cmd {
	// Not the test's own context: that has ended when its cleanup runs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.t.Context()), limit)
	e.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = e.Environ()
	cmd.WaitDelay = 5 * time.Second
	if e.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e.uid, Gid: e.uid}}
		cmd.Dir = e.Home
	}
	return cmd
}

// Belljar runs belljar with args to its end.
func (e *Env) Belljar(args ...string) Result { return e.Finish(e.Command(args...)) }

// Finish runs cmd to its end and returns how it ended. Output that cmd already
// sends elsewhere is not in the result.
func (e *Env) Finish(cmd *exec.Cmd) Result {
	e.t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	began := time.Now()
	err := cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		if r.Code = exit.ExitCode(); r.Code < 0 {
			e.t.Errorf("%v: %v; stderr: %s", cmd.Args, err, r.Stderr)
		}
	default:
		e.t.Errorf("%v: %v", cmd.Args, err)
		r.Code = -1
	}
	return r
}
