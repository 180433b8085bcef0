package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// TestPTYResize: the size is right from the first moment and follows ours.
func TestPTYResize(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	for _, how := range [][]string{{"run", "-it"}, {"exec", "-it", b.name}} {
		s := testenv.OnTerminal(t, e.Command(append(how, "--", "sh", "-c",
			`stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done`)...))
		s.Expect("24 80")
		s.Expect("ready")
		testenv.Resize(t, s.Master, 132, 43)
		s.Expect("43 132")
		s.Send("\x03")
		if code := s.Wait(); code != 130 {
			t.Errorf("%v: exit code %d, want 130 after Ctrl-C", how, code)
		}
		if !s.Cooked() {
			t.Errorf("%v: the terminal was left raw", how)
		}
	}
}

// anySignal stands for the exit code of whichever signal came last.
const anySignal = -1

// TestPTYRestored: on every way out the terminal is as before: modes that the
// command has left on are reset and input that it has not read is gone.
func TestPTYRestored(t *testing.T) {
	e := setup(t)
	const mess = `printf '\033[?1049h\033[?25l\033[?2004h\033[?1002h'; echo ready; `
	for _, tc := range []struct {
		name, line string
		flags      []string
		do         func(s *testenv.Session)
		code       int
	}{
		{"exit", mess + "exit 7", nil, nil, 7},
		{"timeout", mess + "sleep 60", []string{"--timeout", "2s"}, nil, 124},
		{"killed inside", mess + "kill -9 $$", nil, nil, 137},
		{"SIGTERM to us", mess + "sleep 60", nil, func(s *testenv.Session) { s.Cmd.Process.Signal(syscall.SIGTERM) }, 143},
		{"SIGHUP to us", mess + "sleep 60", nil, func(s *testenv.Session) { s.Cmd.Process.Signal(syscall.SIGHUP) }, 129},
		{"asked thrice", mess + "trap '' TERM INT HUP; while :; do sleep 1; done", nil, func(s *testenv.Session) {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
				s.Cmd.Process.Signal(sig)
			}
		}, anySignal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := append(append([]string{"run", "-it"}, tc.flags...), "--", "sh", "-c", tc.line)
			s := testenv.OnTerminal(t, e.Command(args...))
			s.Expect("ready")
			s.Send("rm -rf ~\r") // typed ahead, for nobody
			if tc.do != nil {
				tc.do(s)
			}
			if code := s.Wait(); code != tc.code && (tc.code != anySignal || code <= 128) {
				t.Errorf("exit code %d, want %d; output %q", code, tc.code, s.Output())
			}
			if !s.Cooked() {
				t.Error("the terminal was left raw")
			}
			s.Expect("\x1b[?1049l")
			s.Expect("\x1b[?25h")
			s.Expect("\x1b[?2004l")
			s.Expect("\x1b[?1002l")
		})
	}
}

// TestTTYNeedsTerminals: -t with a pipe at either end is refused as docker
// does, before anything is started.
func TestTTYNeedsTerminals(t *testing.T) {
	e := testenv.New(t)
	r := want(t, e.Belljar("run", "-it", "--", "true"), 2)
	contains(t, r.Stderr, "the input device is not a TTY")
	_, slave := testenv.OpenPTY(t)
	cmd := e.Command("run", "-it", "--", "true")
	cmd.Stdin = slave
	contains(t, want(t, e.Finish(cmd), 2).Stderr, "the output device is not a TTY")
}

// TestInteractiveShell: a shell with job control, an exit code of its own.
func TestInteractiveShell(t *testing.T) {
	e := setup(t)
	s := testenv.OnTerminal(t, e.Command("run", "-it", "-e", "PS1=> ", "--", "bash", "--norc", "--noprofile"))
	s.Expect("> ")
	s.Send("tty && echo $((6*7))\r")
	s.Expect("42")
	// What is typed while the shell takes the terminal back from a command is
	// lost in gVisor: each line waits for the prompt.
	s.Send("sh -c 'trap \"echo g\"\"ot it; exit 3\" INT; echo u\"\"p; while :; do sleep 0.1; done'\r")
	s.Expect("up\r\n")
	s.Send("\x03")
	s.Expect("got it\r\n\x1b[?2004h> ")
	s.Send("echo status=$?\r")
	s.Expect("status=3\r\n\x1b[?2004h> ")
	s.Send("exit 9\r")
	if code := s.Wait(); code != 9 {
		t.Errorf("exit code %d, want 9", code)
	}
	if strings.Contains(s.Output(), "no job control") {
		t.Errorf("the shell has no job control: %q", s.Output())
	}
}

// TestSignalsAreForwarded: without a terminal signals to us reach the
// command, which may handle them.
func TestSignalsAreForwarded(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	for _, how := range [][]string{{"run"}, {"exec", b.name}} {
		for sig, code := range map[syscall.Signal]string{syscall.SIGINT: "31", syscall.SIGTERM: "32", syscall.SIGUSR1: "33"} {
			cmd := e.Command(append(how, "--", "sh", "-c",
				`trap 'exit 31' INT; trap 'exit 32' TERM; trap 'exit 33' USR1; echo ready; while :; do sleep 0.1; done`)...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			cmd.Process.Signal(sig)
			cmd.Wait()
			if got := itoa(cmd.ProcessState.ExitCode()); got != code {
				t.Errorf("%v, %v: exit code %s, want %s", how, sig, got, code)
			}
		}
	}
}
