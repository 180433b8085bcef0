package daemon_test

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

func create(t testing.TB, c *client.Client, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	made, err := c.Create(t.Context(), spec, nil)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return made.Sandbox
}

func TestLifeOfASandbox(t *testing.T) {
	c := install(t).dial()
	spec := sandbox.Spec{Name: "first", User: "root", Workdir: "/tmp", Labels: map[string]string{"a": "b"}}
	sb := create(t, c, spec)
	if sb.State != sandbox.Running || sb.Generation != 1 || sb.Isolation.Effective != sandbox.GVisor || sb.Labels["a"] != "b" {
		t.Errorf("created: got %+v", sb)
	}
	if _, err := c.Create(t.Context(), spec, nil); sandbox.KindOf(err) != sandbox.AlreadyExists {
		t.Errorf("a second of the name: got %v, want already_exists", err)
	}
	var out, errOut bytes.Buffer
	exit, err := c.Exec(t.Context(), "first", client.ExecOptions{
		Argv:    []string{"/bin/sh", "-c", "cat; echo done; echo bad >&2; exit 3"},
		Streams: client.Streams{Stdin: strings.NewReader("hello\n"), Stdout: &out, Stderr: &errOut},
	})
	if err != nil || exit.Code != 3 || out.String() != "hello\ndone\n" || errOut.String() != "bad\n" {
		t.Errorf("exec: got %+v, %v, %q, %q", exit, err, out.String(), errOut.String())
	}
	within(t, 10*time.Second, "the process is forgotten", func() bool {
		ps, err := c.Processes(t.Context(), "first")
		return err == nil && len(ps) == 0
	})
	st, err := c.Stats(t.Context(), string(sb.ID))
	if err != nil || st.Guest == nil {
		t.Errorf("stats: got %+v, %v", st, err)
	}
	for range 2 {
		dead, err := c.Kill(t.Context(), string(sb.ID))
		if err != nil || dead.State != sandbox.Dead || dead.EndReason != sandbox.EndKilled || dead.EndedAt.IsZero() {
			t.Errorf("kill: got %+v, %v", dead, err)
		}
	}
	if _, err := c.Processes(t.Context(), "first"); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("processes of a dead sandbox: got %v, want conflict", err)
	}
	if live, err := c.List(t.Context(), false); err != nil || len(live) != 0 {
		t.Errorf("list: got %v, %v", live, err)
	}
	if all, err := c.List(t.Context(), true); err != nil || len(all) != 1 {
		t.Errorf("list all: got %v, %v", all, err)
	}
	again := create(t, c, spec) // the name is free
	if got, err := c.Get(t.Context(), "first"); err != nil || got.ID != again.ID {
		t.Errorf("get by name: got %v, %v, want the living one", got.ID, err)
	}
}

func TestEvents(t *testing.T) {
	c := install(t).dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	ev, err := c.Events(t.Context(), string(sb.ID), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer ev.Close()
	if _, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{ID: "slow", Argv: []string{"/bin/sleep", "60"}, Timeout: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	// The exit is noted beside the answer: it may come after it.
	want := []string{"state creating", "state running", "limit time", "exit"}
	var got []string
	for len(got) < len(want) {
		e, err := ev.Next()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, strings.TrimSpace(string(e.Kind)+" "+string(e.State)+string(e.Limit)))
	}
	if strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := c.Kill(t.Context(), string(sb.ID)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []sandbox.State{sandbox.Killing, sandbox.Dead} {
		if e, err := ev.Next(); err != nil || e.State != want {
			t.Errorf("got %v, %v, want %v", e, err, want)
		}
	}
	if e, err := ev.Next(); err == nil {
		t.Errorf("got %v after the end", e)
	}
}

func TestTimeouts(t *testing.T) {
	in := install(t)
	c := in.dial()
	short := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: 300 * time.Millisecond})
	moved := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Hour})
	never := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: 500 * time.Millisecond})
	if sb, err := c.SetTimeout(t.Context(), string(moved.ID), 300*time.Millisecond); err != nil || sb.EndsAt.IsZero() {
		t.Errorf("SetTimeout: got %v, %v", sb.EndsAt, err)
	}
	if sb, err := c.SetTimeout(t.Context(), string(never.ID), 0); err != nil || !sb.EndsAt.IsZero() {
		t.Errorf("SetTimeout 0: got %v, %v", sb.EndsAt, err)
	}
	for _, id := range []sandbox.ID{short.ID, moved.ID} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if sb, err := c.Wait(ctx, string(id)); err != nil || sb.EndReason != sandbox.EndTimeout {
			t.Errorf("got %v, %v, want timeout", sb.EndReason, err)
		}
	}
	// One that a restarted daemon has to keep.
	late := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Second})
	if err := syscall.Kill(pid(t, c), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if sb, err := c.Wait(t.Context(), string(late.ID)); err != nil || sb.EndReason != sandbox.EndTimeout {
		t.Errorf("after a restart: got %v, %v, want timeout", sb.EndReason, err)
	} else if took := sb.EndedAt.Sub(sb.StartedAt); took < 900*time.Millisecond || took > 30*time.Second {
		t.Errorf("after a restart: ended after %v, want 1s and what a loaded host adds", took)
	}
	if sb, err := c.Get(t.Context(), string(never.ID)); err != nil || sb.State != sandbox.Running {
		t.Errorf("without a timeout: got %v, %v", sb.State, err)
	}
}
