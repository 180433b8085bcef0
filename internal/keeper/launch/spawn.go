package launch

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// spawn is one start of the engine in a role.
type spawn struct {
	engine string
	role   string
	args   []string
	env    []string
	log    string // file for standard output and error; "" for ours

	cmd       *exec.Cmd
	files     []*os.File // passed as 3, 4, ...
	ids       string
	idsReason string
}

// pass hands f to the engine, with the flag that names its number.
func (s *spawn) pass(flag string, f *os.File) {
	s.args = append(s.args, "--"+flag, strconv.Itoa(3+len(s.files)))
	s.files = append(s.files, f)
}

// passedEnv are the variables that the engine gets from ours; none of them
// reaches a guest.
var passedEnv = []string{
	"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "BELLJAR_RUNTIME_DIR", "BELLJAR_STATE_DIR",
	"BELLJAR_GVISOR_DEBUG", "GODEBUG", "GOCOVERDIR", "GORACE", "GOTRACEBACK",
}

// start runs the engine in fitting namespaces and returns the reading end of
// its status pipe.
func (s *spawn) start(ctx context.Context) (*os.File, error) {
	if ctx.Err() != nil {
		return nil, sandbox.Errorf(sandbox.Canceled, "the start was given up").WithCause(ctx.Err())
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "cannot make a pipe: %w", err)
	}
	defer w.Close()
	s.pass("status", w)
	if err := s.run(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (s *spawn) run() error {
	ino, err := mountNamespace()
	if err != nil {
		return err
	}
	s.args = append(s.args, "--parent-mounts", strconv.FormatUint(ino, 10))
	if os.Geteuid() == 0 {
		s.ids = "host"
		return s.exec(&syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS})
	}
	return s.runMapped()
}

// exec starts the engine. Each attempt is a command of its own.
func (s *spawn) exec(attr *syscall.SysProcAttr) error {
	cmd := exec.Command(s.engine, append([]string{s.role}, s.args...)...)
	cmd.Dir = "/" // the caller's directory must not be pinned
	cmd.Env = engineEnv(s.env)
	cmd.ExtraFiles = s.files
	cmd.SysProcAttr = attr
	if s.log != "" {
		log, err := os.OpenFile(s.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return sandbox.Errorf(sandbox.Unavailable, "cannot open the keeper's log: %w", err).WithField("log", s.log)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	if err := cmd.Start(); err != nil {
		return explainStart(err, s.engine)
	}
	s.cmd = cmd
	return nil
}

func engineEnv(more []string) []string {
	env := []string{}
	for _, name := range passedEnv {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, more...)
}

func mountNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return 0, sandbox.Errorf(sandbox.Unsupported, "cannot look at the mount namespace: %w", err).WithHint("is /proc mounted?")
	}
	return st.Ino, nil
}
