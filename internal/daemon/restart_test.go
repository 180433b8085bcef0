package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// counter writes the numbers of a stream and remembers how many bytes came.
type counter struct {
	mu  sync.Mutex
	n   int64
	buf bytes.Buffer
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += int64(len(p))
	return c.buf.Write(p)
}

func (c *counter) len() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// killDaemon kills the daemon with -9.
func (in *installation) killDaemon() {
	in.t.Helper()
	c, err := client.Dial(in.t.Context(), in.options(true))
	if err != nil {
		in.t.Fatalf("no daemon to kill: %v", err)
	}
	defer c.Close()
	if err := syscall.Kill(pid(in.t, c), syscall.SIGKILL); err != nil {
		in.t.Fatal(err)
	}
}

// A daemon that is killed in the middle of an exec costs no byte of its input
// or output.
func TestExecOutlivesTheDaemon(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	const size = 48 << 20
	input := make([]byte, size)
	for i := range input {
		input[i] = byte(i * 7 >> 3)
	}
	var out counter
	done := make(chan struct{})
	go func() {
		defer close(done)
		for part := int64(1); part <= 3; part++ {
			within(t, time.Minute, "the next part", func() bool { return out.len() > part*size/5 })
			in.killDaemon()
		}
	}()
	exit, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{
		Argv: []string{"/bin/cat"},
		Streams: client.Streams{
			// No Len and no WriteTo: as a pipe would be.
			Stdin: struct{ io.Reader }{bytes.NewReader(input)}, Stdout: &out,
		},
	})
	<-done
	if err != nil || exit.Code != 0 {
		t.Fatalf("exec: got %+v, %v", exit, err)
	}
	if !bytes.Equal(out.buf.Bytes(), input) {
		t.Errorf("got %d bytes, want the %d of the input unchanged", out.len(), size)
	}
}

func TestManyExecsOutliveTheDaemon(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			var out bytes.Buffer
			exit, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{
				Argv:    []string{"/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep 0.02; done"},
				Streams: client.Streams{Stdout: &out},
			})
			want := ""
			for n := range 100 {
				want += fmt.Sprintln(n)
			}
			if err != nil || exit.Code != 0 || out.String() != want {
				t.Errorf("exec %d: got %+v, %v, %q", i, exit, err, out.String())
			}
		})
	}
	for range 4 {
		select { // let them get on
		case <-time.After(300 * time.Millisecond):
		case <-t.Context().Done():
		}
		in.killDaemon()
		if _, err := c.Get(t.Context(), string(sb.ID)); err != nil && sandbox.KindOf(err) != sandbox.Unavailable {
			t.Errorf("get: %v", err)
		}
		within(t, 20*time.Second, "the next daemon", func() bool { _, err := c.Info(t.Context()); return err == nil })
	}
	wg.Wait()
}

// waitDead starts a daemon after a crash and waits until nothing is on its
// way any more.
func (in *installation) settle() *client.Client {
	in.t.Helper()
	c := in.dial()
	within(in.t, 30*time.Second, "all records running or dead", func() bool {
		list, err := c.List(in.t.Context(), false)
		for _, sb := range list {
			if sb.State != sandbox.Running {
				return false
			}
		}
		return err == nil
	})
	return c
}

// At every crash point a daemon that dies there leaves nothing behind after
// the next one has started, and what lived elsewhere lives on.
func TestCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	for _, point := range manager.CrashPoints() {
		t.Run(point, func(t *testing.T) {
			in := install(t)
			c := in.dial()
			bystander := create(t, c, sandbox.Spec{Name: "bystander", User: "root", Workdir: "/"})
			for range rounds {
				in.crashRound(point)
				c := in.settle()
				sb, err := c.Get(t.Context(), "bystander")
				if err != nil || sb.ID != bystander.ID || sb.State != sandbox.Running {
					t.Fatalf("the bystander: got %v %v, %v, want it running", sb.ID, sb.State, err)
				}
				if exit, err := c.Exec(t.Context(), "bystander", client.ExecOptions{Argv: []string{"/bin/true"}}); err != nil || exit.Code != 0 {
					t.Fatalf("exec in the bystander: got %+v, %v", exit, err)
				}
				// Of the victims a running one may be there: its create had been
				// journalled. Nothing else may.
				live, err := c.List(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				for _, sb := range live {
					if sb.ID == bystander.ID {
						continue
					}
					if point != manager.CrashCreateRunning && point[:6] == "create" {
						t.Errorf("%s is %s after a crash at %s", sb.ID, sb.State, point)
					}
					if _, err := c.Kill(t.Context(), string(sb.ID)); err != nil {
						t.Errorf("kill: %v", err)
					}
				}
				within(t, 20*time.Second, "nothing is left but the bystander", func() bool { return len(in.leftovers()) == 2 })
			}
		})
	}
}

// crashRound restarts the daemon so that it dies at point, and has it go there.
func (in *installation) crashRound(point string) {
	in.t.Helper()
	c, err := client.Dial(in.t.Context(), in.options(false))
	if err != nil {
		in.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(in.t.Context(), 30*time.Second)
	defer cancel()
	if point[:5] == "adopt" { // something to adopt, to kill and to bury
		if _, err := c.Create(ctx, sandbox.Spec{User: "root", Workdir: "/"}, nil); err != nil {
			in.t.Fatal(err)
		}
	}
	if err := c.Stop(ctx, false); err != nil {
		in.t.Fatalf("stop: %v", err)
	}
	d := in.daemon("BELLJAR_CRASH=" + point)
	defer d.Wait()
	if point[:5] == "adopt" {
		if err := d.Wait(); !killed(err) {
			in.t.Errorf("%s: the daemon ended with %v, want it killed", point, err)
		}
		return
	}
	quiet := in.options(true)
	var dc *client.Client
	within(in.t, 10*time.Second, "the daemon serves", func() bool { dc, err = client.Dial(ctx, quiet); return err == nil })
	defer dc.Close()
	spec := sandbox.Spec{User: "root", Workdir: "/"}
	if point == manager.CrashCommandEnded { // the sandbox goes by itself
		spec.AutoRemove = true
		if _, err := dc.Create(ctx, spec, &client.Start{Argv: []string{"/bin/true"}, Capture: true}); err != nil {
			in.t.Logf("%s: create: %v", point, err) // the daemon may die before it answers
		}
		if err := d.Wait(); !killed(err) {
			in.t.Errorf("%s: the daemon ended with %v, want it killed", point, err)
		}
		return
	}
	made, err := dc.Create(ctx, spec, nil)
	if err == nil {
		_, err = dc.Kill(ctx, string(made.Sandbox.ID))
	}
	if err == nil {
		in.t.Errorf("%s: the daemon lived through it", point)
		_ = d.Process.Kill()
	}
	if err := d.Wait(); !killed(err) {
		in.t.Errorf("%s: the daemon ended with %v, want it killed", point, err)
	}
}

func killed(err error) bool {
	var x interface{ Sys() any }
	if !errors.As(err, &x) {
		return false
	}
	ws, ok := x.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

func TestCapturedLogsOutliveTheDaemon(t *testing.T) {
	in := install(t)
	c := in.dial()
	made, err := c.Create(t.Context(), sandbox.Spec{User: "root", Workdir: "/"}, &client.Start{
		ID: "main", Capture: true,
		Argv: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.005; done; echo end >&2; exit 4"},
	})
	if err != nil || made.Process == nil {
		t.Fatalf("create: got %+v, %v", made, err)
	}
	in.killDaemon()
	c.Info(t.Context()) // whatever it says, it starts the next daemon
	ref := string(made.Sandbox.ID)
	p, err := c.WaitProcess(t.Context(), ref, "main")
	if err != nil || p.Exit == nil || p.Exit.Code != 4 {
		t.Fatalf("wait: got %+v, %v", p, err)
	}
	read := func() (stdout, stderr string, exit *sandbox.Exit) {
		o, err := c.Logs(t.Context(), ref, "", true)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		for {
			ch, err := o.Next()
			switch {
			case err == io.EOF:
				return
			case err != nil:
				t.Fatal(err)
			case ch.Kind == client.ChunkGap:
				t.Errorf("a gap of %d bytes", ch.Lost)
			case ch.Kind == client.ChunkExit:
				exit = &ch.Exit
			case ch.Stream == client.Stdout:
				stdout += string(ch.Data)
			default:
				stderr += string(ch.Data)
			}
		}
	}
	want := ""
	for n := range 200 {
		want += fmt.Sprintln("line", n)
	}
	for _, when := range []string{"alive", "dead"} {
		stdout, stderr, exit := read()
		if stdout != want || stderr != "end\n" || exit == nil || exit.Code != 4 {
			t.Errorf("%s: got %d bytes, %q, %+v", when, len(stdout), stderr, exit)
		}
		if _, err := c.Kill(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Logs(t.Context(), ref, "other", false); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("logs of another process: got %v, want not_found", err)
	}
}

// A keeper that dies takes its sandboxes with it, and nothing is left.
func TestKeeperDies(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	ks := in.processes(engineName)
	if len(ks) != 1 {
		t.Fatalf("keepers: %v", ks)
	}
	var kpid int
	fmt.Sscanf(ks[0], engineName+" %d", &kpid)
	done := make(chan error, 1)
	go func() {
		exit, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{Argv: []string{"/bin/sleep", "60"}})
		if err == nil && (exit.Signal != 9 || exit.Reason == "") {
			err = fmt.Errorf("exit %+v", exit)
		}
		done <- err
	}()
	within(t, 10*time.Second, "the exec runs", func() bool {
		ps, err := c.Processes(t.Context(), string(sb.ID))
		return err == nil && len(ps) == 1
	})
	if err := syscall.Kill(kpid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dead, err := c.Wait(t.Context(), string(sb.ID))
	if err != nil || dead.EndReason != sandbox.EndLost {
		t.Errorf("got %v, %v, want lost", dead.EndReason, err)
	}
	if err := <-done; err != nil {
		t.Errorf("the exec: %v", err)
	}
	in.nothingLeft()
	create(t, c, sandbox.Spec{User: "root", Workdir: "/"}) // on another keeper
}

// crashRounds is how often each crash point is passed: BELLJAR_CRASH_ROUNDS, or
// usual.
func crashRounds(t testing.TB, usual int) int {
	t.Helper()
	v := os.Getenv("BELLJAR_CRASH_ROUNDS")
	if v == "" {
		return usual
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
