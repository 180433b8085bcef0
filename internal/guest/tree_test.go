package guest_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// alive lists the processes whose command line holds mark.
func alive(t *testing.T, mark string) []int {
	t.Helper()
	names, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n.Name() + "/cmdline")
		if err == nil && bytes.Contains(b, []byte(mark)) {
			out = append(out, pid)
		}
	}
	return out
}

// waitFor asks until done or the time is over.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(10 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("gave up waiting for %s", what)
		}
	}
}

// family is a shell that leaves children behind in every way there is: in its
// group, in a session of their own, and orphaned there.
func family(mark string) string {
	return fmt.Sprintf(`sleep %[1]s.1 & setsid sleep %[1]s.2 & (setsid sh -c 'setsid sleep %[1]s.3 & sleep %[1]s.4' &) ; (sleep %[1]s.5 &) ; `, mark)
}

func TestTimeoutKillsTheTree(t *testing.T) {
	b := newBox(t, options{})
	mark := fmt.Sprintf("86431%d", os.Getpid())
	p := b.begin(wire.Start{Argv: sh(family(mark) + "wait; sleep 86431.6"), Timeout: time.Second})
	waitFor(t, "the family", func() bool { return len(alive(t, "sleep\x00"+mark)) >= 5 })
	begin := time.Now()
	r := b.read(p.ID)
	if !r.exit.TimedOut || r.exit.Signal != 9 || r.exit.Reason != "timeout" {
		t.Errorf("got %+v, want a timeout", r.exit)
	}
	if left := alive(t, mark); len(left) != 0 {
		t.Errorf("%d processes outlived the timeout", len(left))
	}
	if took := time.Since(begin); took > 5*slowdown*time.Second {
		t.Errorf("the end took %v", took)
	}
	m, err := b.Metrics(t.Context())
	if err != nil || m.LimitHits[sandbox.LimitTime] != 1 {
		t.Errorf("got hits %v, %v, want one of time", m.LimitHits, err)
	}
}

func TestDeleteKillsTheTree(t *testing.T) {
	b := newBox(t, options{})
	mark := fmt.Sprintf("86432%d", os.Getpid())
	p := b.begin(wire.Start{Argv: sh(family(mark) + "wait"), KeepTree: true})
	waitFor(t, "the family", func() bool { return len(alive(t, "sleep\x00"+mark)) >= 5 })
	if err := b.Kill(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	if left := alive(t, mark); len(left) != 0 {
		t.Errorf("%d processes are left", len(left))
	}
	if err := b.Kill(t.Context(), p.ID); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("again: got %v, want not found", err)
	}
}

func TestChildrenEndWithTheProcess(t *testing.T) {
	b := newBox(t, options{})
	mark := fmt.Sprintf("86433%d", os.Getpid())
	begin := time.Now()
	r := b.run(wire.Start{Argv: sh(family(mark) + "echo done")})
	if r.stdout != "done\n" || r.exit.Code != 0 {
		t.Errorf("got %q, %+v", r.stdout, r.exit)
	}
	if left := alive(t, mark); len(left) != 0 {
		t.Errorf("%d processes outlived their parent", len(left))
	}
	if took := time.Since(begin); took > 3*slowdown*time.Second {
		t.Errorf("children that hold the output delayed the exit by %v", took)
	}
}

func TestKeepTree(t *testing.T) {
	b := newBox(t, options{})
	mark := fmt.Sprintf("86434%d", os.Getpid())
	begin := time.Now()
	// The child keeps writing to the output that it inherited.
	p := b.begin(wire.Start{Argv: sh("(while :; do echo tick; sleep 0.01; done) & echo done; exec true " + mark), KeepTree: true})
	r := b.read(p.ID)
	if r.exit.Code != 0 || !strings.Contains(r.stdout, "done\n") {
		t.Errorf("got %q, %+v", r.stdout, r.exit)
	}
	if took := time.Since(begin); took > 3*slowdown*time.Second {
		t.Errorf("the exit took %v", took)
	}
	var before int64
	waitFor(t, "more output of the child", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		if before == 0 {
			before = st.Stdout.Written
		}
		return st.Stdout.Written > before+20
	})
	if err := b.Signal(t.Context(), p.ID, wire.Signal{Signal: 9, Tree: true}); err != nil {
		t.Error(err)
	}
}

func TestSignal(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: sh("trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.02; done")})
	waitFor(t, "the trap", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		return err == nil && st.Stdout.Written > 0
	})
	if err := b.Signal(t.Context(), p.ID, wire.Signal{Signal: int(unix.SIGTERM)}); err != nil {
		t.Fatal(err)
	}
	if r := b.read(p.ID); r.stdout != "ready\ncaught\n" || r.exit.Code != 3 {
		t.Errorf("got %q, %+v", r.stdout, r.exit)
	}
	if err := b.Signal(t.Context(), p.ID, wire.Signal{Signal: 15}); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("after the end: got %v, want a conflict", err)
	}
	if err := b.Signal(t.Context(), p.ID, wire.Signal{Signal: 99}); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("signal 99: got %v, want invalid", err)
	}
}

func TestPTY(t *testing.T) {
	b := newBox(t, options{})
	r := b.run(wire.Start{
		Argv: sh("stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo terminal; echo $TERM; ps -o tty= -p $$ >/dev/null && : </dev/tty && echo controlling"),
		PTY:  &wire.PTYSize{Cols: 101, Rows: 33},
	})
	lines := strings.Split(r.stdout, "\r\n")
	if len(lines) < 5 || lines[0] != "33 101" || !strings.HasPrefix(lines[1], "/dev/pts/") || lines[2] != "terminal" ||
		lines[3] != "xterm-256color" || lines[4] != "controlling" {
		t.Errorf("got %q", r.stdout)
	}
	if r.stderr != "" || r.exit.Code != 0 {
		t.Errorf("got stderr %q, %+v", r.stderr, r.exit)
	}
}

// TestPTYKept has a child hold the terminal open.
func TestPTYKept(t *testing.T) {
	b := newBox(t, options{})
	begin := time.Now()
	p := b.begin(wire.Start{
		Argv: sh("trap '' HUP; (while :; do echo tick; sleep 0.01; done) & echo done"), PTY: &wire.PTYSize{}, KeepTree: true,
	})
	if r := b.read(p.ID); r.exit.Code != 0 || !strings.Contains(r.stdout, "done") {
		t.Errorf("got %q, %+v", r.stdout, r.exit)
	}
	if took := time.Since(begin); took > 5*slowdown*time.Second {
		t.Errorf("took %v", took)
	}
	if err := b.Kill(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
}

func TestPTYInputAndResize(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{
		Argv: sh("trap 'stty size; exit' WINCH; stty -echo; echo ready; while read line; do echo got $line; done; echo eof; while :; do sleep 0.02; done"),
		PTY:  &wire.PTYSize{Cols: 80, Rows: 24},
	})
	o, err := b.Attach(t.Context(), p.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var text string
	expect := func(want string) {
		t.Helper()
		for !strings.Contains(text, want) {
			e, err := o.Next()
			if err != nil {
				t.Fatalf("waiting for %q after %q: %v", want, text, err)
			}
			text += string(e.Data)
		}
	}
	expect("ready\r\n")
	if _, err := b.Stdin(t.Context(), p.ID, 0, strings.NewReader("one\n"), false); err != nil {
		t.Fatal(err)
	}
	expect("got one\r\n")
	if _, err := b.Stdin(t.Context(), p.ID, 4, strings.NewReader(""), true); err != nil {
		t.Fatal(err)
	}
	expect("eof\r\n")
	if err := b.Resize(t.Context(), p.ID, wire.PTYSize{Cols: 132, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	expect("50 132\r\n")
	pipe := b.begin(wire.Start{Argv: []string{"sleep", "60"}})
	if err := b.Resize(t.Context(), pipe.ID, wire.PTYSize{Cols: 1, Rows: 1}); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("without a terminal: got %v, want invalid", err)
	}
}

func TestPTYVolume(t *testing.T) {
	b := newBox(t, options{})
	const size = 64 << 20
	p := b.begin(wire.Start{
		Argv: sh("stty raw -echo; exec head -c 67108864 /dev/zero"), PTY: &wire.PTYSize{},
	})
	o, err := b.Attach(t.Context(), p.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	begin := time.Now()
	got, want := sha256.New(), sha256.New()
	exit, lost, err := o.CopyTo(got, io.Discard)
	if err != nil || exit.Code != 0 || lost != 0 {
		t.Fatalf("got %+v, lost %d, %v", exit, lost, err)
	}
	io.Copy(want, io.LimitReader(zeros{}, size))
	if n, _ := o.Offsets(); n != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("got %d bytes with another sum", n)
	}
	t.Logf("%.0f MB/s through a terminal", float64(size)/1e6/time.Since(begin).Seconds())
}

// TestExitBehindUnreadOutput: a reader hears of the exit of a process whose last
// output nobody had room for when it ended, although a child of it lives on with
// the same output open.
func TestExitBehindUnreadOutput(t *testing.T) {
	b := newBox(t, options{hello: func(h *wire.Hello) { h.Limits.OutputBytes = 64 << 10 }})
	// The buffer and the pipe are full when it ends.
	p := b.begin(wire.Start{Argv: sh("sleep 1000 & head -c 100000 /dev/zero; exec true"), KeepTree: true})
	waitFor(t, "the end of the process", func() bool {
		st, err := b.Process(t.Context(), p.ID)
		return err == nil && st.Exit != nil
	})
	done := make(chan result, 1)
	go func() { done <- b.read(p.ID) }()
	select {
	case r := <-done:
		if len(r.stdout) != 100000 || r.exit.Code != 0 {
			t.Errorf("got %d bytes, %+v", len(r.stdout), r.exit)
		}
	case <-time.After(10 * slowdown * time.Second):
		t.Error("the exit is not told while the child lives")
	}
	if err := b.Kill(t.Context(), p.ID); err != nil {
		t.Error(err)
	}
}
