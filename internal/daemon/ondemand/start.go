package ondemand

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/lifelock"
	"github.com/belljar-sh/belljar/sandbox"
)

// starter is one caller's attempt to have a daemon. Of several at once the one
// that holds the start lock starts it; all wait until it serves.
type starter struct {
	o     Options
	lock  *os.File      // the start lock, when this caller is the one
	ended chan struct{} // closed when the daemon that was started has ended
}

// startLock keeps two callers from starting a daemon each. It is not the
// daemon's own lock, which lasts for the daemon's life.
const startLock = "start.lock"

// await connects as soon as a daemon serves, starting one when none lives.
func (o Options) await(ctx context.Context, socket string) (net.Conn, error) {
	if err := errors.Join(o.Dirs.MakeRuntime(), o.Dirs.MakeState()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	s := &starter{o: o}
	defer s.close()
	t := time.NewTicker(3 * time.Millisecond)
	defer t.Stop()
	for {
		conn, err := o.connect(ctx, socket)
		if err == nil || !absent(err) {
			return conn, err
		}
		if err := s.step(); err != nil {
			return nil, err
		}
		select {
		case <-t.C:
		case <-s.ended:
			return nil, s.failed()
		case <-ctx.Done():
			return nil, sandbox.Errorf(sandbox.Unavailable, "the daemon does not serve: %v", err).
				WithHint("see %s, or run `belljar daemon run` to watch it", o.Dirs.DaemonLog())
		}
	}
}

// step starts the daemon when none lives and nobody else starts it. A daemon
// that lives and does not serve is about to, or about to end.
func (s *starter) step() error {
	if s.lock != nil || held(s.o.Dirs.DaemonLock()) {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(s.o.Dirs.Runtime, startLock), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "the start lock cannot be opened: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil // somebody else starts it
	}
	s.lock = lock
	if held(s.o.Dirs.DaemonLock()) {
		return nil // it was started before we had the lock
	}
	return s.spawn()
}

// spawn runs `belljar daemon run` in a session of its own.
func (s *starter) spawn() error {
	program := s.o.Program
	if program == "" {
		p, err := os.Executable()
		if err != nil {
			return sandbox.Errorf(sandbox.Internal, "the belljar program cannot be found: %w", err)
		}
		program = p
	}
	if err := s.full(); err != nil {
		return err
	}
	log, err := openLog(s.o.Dirs.DaemonLog())
	if err != nil {
		return err
	}
	defer log.Close()
	// Not bound to a context: the daemon outlives who started it.
	cmd := exec.Command(program, "daemon", "run")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(environment(os.Environ()), config.EnvState+"="+s.o.Dirs.State, config.EnvRuntime+"="+s.o.Dirs.Runtime)
	if err := cmd.Start(); err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the daemon cannot be started: %w", err).WithField("program", program)
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = cmd.Wait() // its log says how it ended
	}()
	return nil
}

// leastFree is what a daemon needs for its journal and its log to begin with.
const leastFree = 64 << 10

// full tells of a disk on which a daemon could not even write why it ended.
func (s *starter) full() error {
	for _, d := range []struct{ dir, env string }{{s.o.Dirs.State, config.EnvState}, {s.o.Dirs.Runtime, config.EnvRuntime}} {
		var st unix.Statfs_t
		if err := unix.Statfs(d.dir, &st); err != nil || st.Blocks == 0 {
			continue // it does not count
		}
		free := st.Bavail
		if os.Geteuid() == 0 {
			free = st.Bfree
		}
		if free < leastFree/uint64(max(1, st.Bsize)) {
			return sandbox.Errorf(sandbox.ResourceExhausted, "the disk is full: a daemon cannot keep its state").
				WithField("directory", d.dir).WithHint("free space there, or set %s to a directory on another disk", d.env)
		}
	}
	return nil
}

// maxLog is the size at which the daemon's log begins anew; the old one is kept
// once.
const maxLog = 4 << 20

// openLog opens the daemon's log to append to it. Only one starter at a time
// does so.
func openLog(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, sandbox.Errorf(sandbox.Internal, "the daemon's log cannot be put aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the daemon's log cannot be opened: %w", err)
	}
	return f, nil
}

// environment is what the daemon gets of its starter's environment: it lives
// longer than the session whose tokens and agents may be in the rest.
func environment(all []string) (out []string) {
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "GODEBUG", "GOMAXPROCS", "GOTRACEBACK"}, name),
			strings.HasPrefix(name, "LC_"), strings.HasPrefix(name, "XDG_"), strings.HasPrefix(name, "BELLJAR_"):
			out = append(out, kv)
		}
	}
	return out
}

func (s *starter) close() {
	if s.lock != nil {
		s.lock.Close()
	}
}

// failed tells of a daemon that ended before it served.
func (s *starter) failed() error {
	if err := s.full(); err != nil {
		return err
	}
	e := sandbox.Errorf(sandbox.Unavailable, "the daemon ended before it served").
		WithHint("see %s, or run `belljar daemon run` to watch it", s.o.Dirs.DaemonLog())
	said, hint := lastWords(s.o.Dirs.DaemonLog())
	if said != "" {
		e = e.WithField("daemon", said)
	}
	if hint != "" {
		e = e.WithHint("%s", hint)
	}
	return e
}

// lastWords returns the last line of a log, cut to what an error can show, and
// the hint that follows it where the program ended with one.
func lastWords(path string) (said, hint string) {
	f, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer f.Close()
	const shown = 2048
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end > shown {
		_, _ = f.Seek(-shown, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, _ := io.ReadAll(io.LimitReader(f, shown))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	said = lines[len(lines)-1]
	if h, ok := strings.CutPrefix(said, "hint: "); ok && len(lines) > 1 {
		said, hint = lines[len(lines)-2], h
	}
	return strings.TrimPrefix(said, "belljar: "), hint
}

// held reports whether somebody holds the lock at path.
func held(path string) bool {
	is, err := lifelock.Held(path)
	return is && err == nil
}
