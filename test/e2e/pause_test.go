package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// keeps is a program with everything that a pause has to keep: a counter in
// memory, an open file that it goes on writing, a child, a timer, and a socket
// that tells of all of them.
const keeps = `
import os, socket, subprocess, sys, threading, time
log = open("/tmp/log", "w")
child = subprocess.Popen(["sleep", "100000"])
secret = os.urandom(8).hex()
served = ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        print("tick", ticks, flush=True)
        time.sleep(0.05)
threading.Thread(target=tick, daemon=True).start()
s = socket.create_server(("127.0.0.1", 8080))
open("/tmp/ready", "w").close()
while True:
    c, _ = s.accept()
    served += 1
    print("served", served, file=log, flush=True)
    c.sendall(f"{os.getpid()} {child.pid} {child.poll()} {secret} {served} {log.tell()} {ticks}".encode())
    c.close()
`

const asks = `
import socket
c = socket.create_connection(("127.0.0.1", 8080), 20)
print(c.makefile().read())
`

// told is what the program says of itself.
type told struct{ pid, child, ended, secret, served, offset, ticks string }

func ask(b *box) told {
	b.t.Helper()
	f := strings.Fields(want(b.t, b.exec(python, "-c", asks), 0).Stdout)
	if len(f) != 7 {
		b.t.Fatalf("the program says %q", f)
	}
	return told{f[0], f[1], f[2], f[3], f[4], f[5], f[6]}
}

// paused pauses a sandbox and checks that nothing of it is on the host.
func (b *box) paused() {
	b.t.Helper()
	want(b.t, b.Belljar("pause", b.name), 0)
	b.rests()
}

func (b *box) rests() {
	b.t.Helper()
	if sb := record(b.t, b.Env, b.name); sb.State != sandbox.Paused || sb.PausedAt.IsZero() || sb.ImageBytes <= 0 {
		b.t.Fatalf("got %+v, want it paused", sb)
	}
	contains(b.t, want(b.t, b.Belljar("ls"), 0).Stdout, "paused")
	if left := held(b.Env, ""); len(left) > 0 {
		b.t.Errorf("a paused sandbox holds %v", left)
	}
	if got := images(b.t, b.Env); len(got) != 1 || strings.Contains(got[0], ".new") {
		b.t.Errorf("images: %v", got)
	}
}

func images(t testing.TB, e *testenv.Env) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(e.State, "images"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range entries {
		out = append(out, f.Name())
	}
	return out
}

func killDaemon(t testing.TB, e *testenv.Env) {
	t.Helper()
	if err := syscall.Kill(daemonPID(t, e), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestPauseKeepsEverything: memory, descriptors, sockets, children, process
// numbers and terminals are there again after a pause, over a kill of the daemon,
// with the next command.
func TestPauseKeepsEverything(t *testing.T) {
	needPython(t)
	e := setup(t)
	b := create(t, e, "work", "--env", "GREETING=hello")
	process := strings.TrimSpace(want(t, e.Belljar("exec", "-d", b.name, "--", python, "-c", keeps), 0).Stdout)
	want(t, b.sh("while ! [ -e /tmp/ready ]; do sleep 0.05; done"), 0)
	shell := testenv.OnTerminal(t, e.Command("exec", "-it", b.name, "--", "sh"))
	shell.Send("X=kept; echo set-$X\r")
	shell.Expect("set-kept")

	first := ask(b)
	for round := range 3 {
		b.paused()
		if round != 1 {
			killDaemon(t, e)
		}
		if round == 2 {
			want(t, e.Belljar("resume", b.name), 0)
		}
		now := ask(b)
		if now.pid != first.pid || now.child != first.child || now.ended != "None" || now.secret != first.secret {
			t.Errorf("round %d: got %+v, want the processes and the memory of %+v", round, now, first)
		}
		if now.served != itoa(round+2) || now.offset != itoa(len("served 1\n")*(round+2)) {
			t.Errorf("round %d: got %+v, want %d served and the file where it was", round, now, round+2)
		}
		if got := want(t, b.sh("cat /tmp/log | wc -l; echo $GREETING; hostname"), 0).Stdout; strings.Join(strings.Fields(got), " ") != itoa(round+2)+" hello work" {
			t.Errorf("round %d: %q", round, got)
		}
		if sb := record(t, e, b.name); sb.State != sandbox.Running || sb.Generation != uint64(round+2) || sb.ImageBytes != 0 {
			t.Errorf("round %d: got %s, generation %d", round, sb.State, sb.Generation)
		}
		if left := images(t, e); len(left) > 0 {
			t.Errorf("round %d: images of a sandbox that runs: %v", round, left)
		}
	}
	shell.Send("echo still-$X\r")
	shell.Expect("still-kept")
	shell.Send("exit 5\r")
	if code := shell.Wait(); code != 5 {
		t.Errorf("the shell on a terminal ended with %d, want 5: %q", code, shell.Output())
	}
	// Not a line of the output is lost, and none came twice.
	ticking := strings.Split(want(t, e.Belljar("logs", "--process", process, b.name), 0).Stdout, "\n")
	for i, line := range ticking[:len(ticking)-1] {
		if line != "tick "+itoa(i+1) {
			t.Fatalf("line %d of the log is %q", i+1, line)
		}
	}
}

// TestPausedOutlivesTheMachine: what is left in the runtime directory does not
// matter, as after a restart of the machine.
func TestPausedOutlivesTheMachine(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work", "--timeout", "1h")
	want(t, b.sh("echo here >/dev/shm/a; echo there >/var/tmp/b"), 0)
	b.paused()
	want(t, e.Belljar("daemon", "stop"), 0)
	if left, err := filepath.Glob(filepath.Join(e.Run, "keepers", "*")); err != nil || len(left) > 0 {
		t.Fatalf("keepers without a sandbox: %v, %v", left, err)
	}
	if err := os.RemoveAll(e.Run); err != nil {
		t.Fatal(err)
	}
	b.rests()
	if got := want(t, b.sh("cat /dev/shm/a /var/tmp/b"), 0).Stdout; got != "here\nthere\n" {
		t.Errorf("got %q", got)
	}
	if sb := record(t, e, b.name); time.Until(sb.EndsAt) < 55*time.Minute {
		t.Errorf("it ends in %v", time.Until(sb.EndsAt))
	}
}

// TestPauseOnTimeout: a sandbox whose time is over is paused, and goes on when
// it is needed.
func TestPauseOnTimeout(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work", "--timeout", "3s", "--on-timeout", "pause")
	want(t, b.sh("echo here >/dev/shm/a"), 0)
	for round := range 2 {
		for end := time.Now().Add(time.Minute); record(t, e, b.name).State != sandbox.Paused; {
			if time.Now().After(end) {
				t.Fatalf("round %d: it is %s", round, record(t, e, b.name).State)
			}
			<-time.After(50 * time.Millisecond)
		}
		if got := want(t, b.sh("cat /dev/shm/a"), 0).Stdout; got != "here\n" {
			t.Errorf("round %d: %q", round, got)
		}
	}
}

// TestKillPaused: of a paused sandbox that is killed no file is left.
func TestKillPaused(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	b.paused()
	contains(t, want(t, e.Belljar("pause", b.name), 0).Stderr, "paused already")
	contains(t, want(t, e.Belljar("stats", b.name, "--no-stream"), 125).Stderr, "paused")
	want(t, e.Belljar("kill", b.name), 0)
	if left := images(t, e); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	contains(t, want(t, e.Belljar("resume", b.name), 125).Stderr, "dead")
}

// TestPauseRefused: what cannot be paused says why, and runs on.
func TestPauseRefused(t *testing.T) {
	e := setup(t)
	b := create(t, e, "mounted", "-v", t.TempDir()+":/data")
	contains(t, want(t, e.Belljar("pause", b.name), 125).Stderr, "/data", "belljar cp")
	want(t, b.sh("echo alive"), 0)
	contains(t, want(t, e.Belljar("run", "--on-timeout", "pause", "--", "true"), 125).Stderr, "belljar create")
	contains(t, want(t, e.Belljar("create", "--on-timeout", "forget"), 2).Stderr, "--on-timeout", "kill or pause")
	contains(t, want(t, e.Belljar("resume", "nobody"), 125).Stderr, "nobody")
}

// TestPauseCrashPoints has the daemon die, as by kill -9, at each step of a pause
// and a resume. What was in memory is there afterwards, whatever the record says,
// and nothing is left over. BELLJAR_CRASH_ROUNDS sets the rounds per point.
func TestPauseCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	e := setup(t)
	for _, point := range manager.PauseCrashPoints() {
		t.Run(point, func(t *testing.T) {
			for range rounds {
				b := create(t, e, "work")
				want(t, b.sh("echo here >/dev/shm/a"), 0)
				if !strings.HasPrefix(point, "pause.") {
					b.paused()
				}
				crashInPause(t, e, point)
				if point == manager.CrashPausedKilled {
					want(t, e.Belljar("ls"), 0) // starts the next daemon
				} else {
					if got := want(t, b.sh("cat /dev/shm/a"), 0).Stdout; got != "here\n" {
						t.Errorf("got %q", got)
					}
					b.paused()
					want(t, e.Belljar("kill", b.name), 0)
				}
				for end := time.Now().Add(20 * time.Second); len(images(t, e)) > 0 || record(t, e, "work").State != sandbox.Dead; {
					if time.Now().After(end) {
						t.Fatalf("it is %s, left: %v", record(t, e, "work").State, images(t, e))
					}
					<-time.After(50 * time.Millisecond)
				}
			}
		})
	}
}

// crashInPause restarts the daemon so that it dies at point, and has it go there.
func crashInPause(t *testing.T, e *testenv.Env, point string) {
	t.Helper()
	act := "pause"
	switch {
	case point == manager.CrashPausedKilled:
		act = "kill"
	case strings.HasPrefix(point, "resume."):
		act = "resume"
	}
	crashDoing(t, e, point, act, "work")
}
