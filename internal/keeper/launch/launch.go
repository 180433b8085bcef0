package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/sandbox"
)

// EngineName is the program that this package starts.
const EngineName = "belljar-engine"

// Options configures [Start] and the reapers.
type Options struct {
	RuntimeDir string // RUN; made (0700) when missing
	Engine     string // path of belljar-engine; default: beside this program
	Kind       string // "run" or "daemon", for owner.json
	// Lifeline ends the keeper, and all its sandboxes, with this process.
	Lifeline bool
	// Env is added to the few variables that the engine gets.
	Env   []string
	Crash keeper.CrashPoint // for tests
}

// Process is a keeper that this process has started. It is safe for concurrent
// use.
type Process struct {
	Dir  string // RUN/keepers/K
	Name string // K
	PID  int
	// IDs tells how many user ids exist inside: "host" as root, "range" with
	// subordinate ids, "one" without. IDsReason says why only one.
	IDs       string
	IDsReason string

	opts     Options
	process  *os.Process
	lifeline *os.File // nil without
	ready    chan struct{}
	done     chan struct{}

	mu      sync.Mutex
	failure *sandbox.Error
}

// Start makes a keeper directory and starts the engine in it. It does not wait
// for the engine: a client may connect at once, and Ready tells when it
// serves. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Process, error) {
	engine, err := enginePath(o.Engine)
	if err != nil {
		return nil, err
	}
	d, err := makeDir(o.RuntimeDir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	p := &Process{Dir: d.path, Name: filepath.Base(d.path), opts: o, ready: make(chan struct{}), done: make(chan struct{})}
	s := &spawn{
		engine: engine, role: "keeper", env: o.Env, log: filepath.Join(d.path, keeper.LogName),
		args: []string{"--dir", d.path, "--kind", kindOr(o.Kind)},
	}
	if o.Crash != "" {
		s.args = append(s.args, "--crash", string(o.Crash))
	}
	s.pass("lock", d.lock)
	s.pass("socket", d.socket)
	s.pass("fds", d.fds)
	if o.Lifeline {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, d.discard(sandbox.Errorf(sandbox.Unavailable, "cannot make a pipe: %w", err))
		}
		defer r.Close()
		s.pass("lifeline", r)
		p.lifeline = w
	}
	status, err := s.start(ctx)
	if err != nil {
		if p.lifeline != nil {
			p.lifeline.Close()
		}
		return nil, d.discard(err)
	}
	p.process, p.PID, p.IDs, p.IDsReason = s.cmd.Process, s.cmd.Process.Pid, s.ids, s.idsReason
	go p.watch(s, status)
	return p, nil
}

func kindOr(kind string) string {
	if kind == "" {
		return "run"
	}
	return kind
}

// watch follows the engine to its end.
func (p *Process) watch(s *spawn, status *os.File) {
	r := readReport(status)
	if r != nil && r.OK {
		close(p.ready)
	}
	err := s.cmd.Wait()
	p.mu.Lock()
	switch {
	case r != nil && r.Error != nil:
		p.failure = r.Error
	case r == nil:
		p.failure = s.died(err)
	case err != nil:
		p.failure = sandbox.Errorf(sandbox.Unavailable, "the keeper ended: %v", err).WithField("keeper", p.Name)
	}
	p.mu.Unlock()
	close(p.done)
}

// readReport reads the one line of a status pipe; nil when there is none.
func readReport(status *os.File) *keeper.Report {
	defer status.Close()
	line, err := bufio.NewReaderSize(io.LimitReader(status, 64<<10), 4<<10).ReadBytes('\n')
	if err != nil {
		return nil
	}
	var r keeper.Report
	if json.Unmarshal(line, &r) != nil {
		return nil
	}
	return &r
}

// Ready waits until the keeper serves. Its error says why it never will.
func (p *Process) Ready(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		select {
		case <-p.ready:
			return nil
		default:
		}
		return p.Failure()
	case <-ctx.Done():
		return sandbox.Errorf(sandbox.DeadlineExceeded, "the keeper did not start in time").WithCause(ctx.Err())
	}
}

// Done is closed when the engine has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Failure returns why the engine ended, nil while it runs and after an orderly
// end.
func (p *Process) Failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		return nil
	}
	return p.failure
}

// Explain returns the engine's own failure in place of err, when err says only
// that nobody answers and the engine has ended or is about to.
func (p *Process) Explain(err error) error {
	if sandbox.KindOf(err) != sandbox.Unavailable {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(100 * time.Millisecond):
		return err
	}
	if f := p.Failure(); f != nil {
		return f
	}
	return err
}

// Client returns a client of the keeper. It does not dial.
func (p *Process) Client() *keeperclient.Client { return keeperclient.New(p.Dir) }

// Close ends the keeper with all its sandboxes and returns when nothing of
// them is left. What a keeper that died has left, a reaper removes.
func (p *Process) Close(ctx context.Context) error {
	if p.lifeline != nil {
		p.lifeline.Close()
	} else {
		_ = p.process.Signal(unix.SIGTERM) // one that has ended has nothing to hear
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.process.Kill()
		<-p.done
	}
	if _, err := os.Lstat(p.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return Reap(context.WithoutCancel(ctx), p.Dir, p.opts)
}

// Detach lets the keeper live on without this process. A keeper with a
// lifeline cannot be detached.
func (p *Process) Detach() error {
	if p.lifeline != nil {
		return sandbox.Errorf(sandbox.Conflict, "a keeper with a lifeline ends with the process that started it")
	}
	return nil
}

// died tells of an engine that ended without a word, with the end of its log.
func (s *spawn) died(err error) *sandbox.Error {
	how := "without a word: it may be another program"
	if err != nil {
		how = err.Error()
	}
	e := sandbox.Errorf(sandbox.Unavailable, "%s ended as it started: %s", EngineName, how).
		WithField("engine", s.engine).WithHint("install the programs together: make install")
	b, rerr := os.ReadFile(s.log)
	if rerr != nil || len(bytes.TrimSpace(b)) == 0 {
		return e
	}
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return e.WithHint("it said %q; if it is of another build, install the programs together: make install", strings.Join(lines[max(0, len(lines)-3):], "; "))
}

// enginePath returns the engine's path, which must exist.
func enginePath(given string) (string, error) {
	if given == "" {
		self, err := os.Readlink("/proc/self/exe")
		if err != nil {
			return "", sandbox.Errorf(sandbox.Internal, "cannot tell where this program lies: %w", err).WithHint("is /proc mounted?")
		}
		given = filepath.Join(filepath.Dir(self), EngineName)
	}
	path, err := exec.LookPath(given)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Unsupported, "%s cannot be run: %v", EngineName, err).
			WithField("engine", given).WithHint("install the programs together: make install").WithCause(err)
	}
	return filepath.Abs(path)
}
