package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// OpenPTY returns the two ends of a new terminal of 80 columns and 24 rows,
// closed when the test ends.
func OpenPTY(t testing.TB) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("probe: no terminal can be made: /dev/ptmx: %v", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	Resize(t, master, 80, 24)
	return master, slave
}

// Resize sets the size of a terminal by either end.
func Resize(t testing.TB, f *os.File, cols, rows uint16) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
		})
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Session is a command on a terminal of its own.
type Session struct {
	t             testing.TB
	Cmd           *exec.Cmd
	Master, Slave *os.File
	ended         chan error

	mu   sync.Mutex
	out  bytes.Buffer
	more chan struct{} // closed and renewed when output comes
}

// OnTerminal starts cmd on a new terminal, as the leader of a session of its
// own.
func OnTerminal(t testing.TB, cmd *exec.Cmd) *Session {
	t.Helper()
	master, slave := OpenPTY(t)
	s := &Session{t: t, Cmd: cmd, Master: master, Slave: slave, ended: make(chan error, 1), more: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read()
	go func() { s.ended <- cmd.Wait() }()
	return s
}

func (s *Session) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Master.Read(buf)
		s.mu.Lock()
		s.out.Write(buf[:n])
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Output is all that came so far.
func (s *Session) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// Send types text.
func (s *Session) Send(text string) {
	s.t.Helper()
	if _, err := s.Master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// patience bounds what a test waits for on a terminal.
const patience = time.Minute

// Expect waits until the output holds text.
func (s *Session) Expect(text string) {
	s.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for from := 0; ; {
		s.mu.Lock()
		all, more := s.out.Bytes(), s.more
		found := bytes.Contains(all[from:], []byte(text))
		from = max(0, len(all)-len(text)) // what was searched cannot match later
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-timeout.C:
			s.t.Fatalf("%q did not come; output: %q", text, s.Output())
		}
	}
}

// Wait returns the exit code.
func (s *Session) Wait() int {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.Cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		s.Cmd.Process.Kill()
		s.t.Fatalf("the command did not end; output: %q", s.Output())
		return -1
	}
}

// Cooked reports whether the terminal is in the mode that a shell expects:
// lines, echo, signals and output processing.
func (s *Session) Cooked() bool {
	tio, err := unix.IoctlGetTermios(int(s.Slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return tio.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) == unix.ICANON|unix.ECHO|unix.ISIG && tio.Oflag&unix.OPOST != 0
}
