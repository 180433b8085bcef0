package cli

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/sandbox"
)

// raise sends a signal to ourselves and waits until f sees its effect.
func raise(t *testing.T, s syscall.Signal, seen <-chan struct{}) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		t.Fatalf("%v had no effect", s)
	}
}

func TestRelayBeforeTheStart(t *testing.T) {
	ctx, r := newRelay(t.Context())
	defer r.stop()
	raise(t, syscall.SIGINT, ctx.Done())
	if status, ok := interrupted(ctx); !ok || status != 130 {
		t.Errorf("interrupted = %v, %v, want 130", status, ok)
	}
}

func TestRelayForwards(t *testing.T) {
	ctx, r := newRelay(t.Context())
	defer r.stop()
	r.begin()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGINT} {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-r.out:
			if got != int(s) {
				t.Errorf("got %d, want %v", got, s)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%v was not forwarded", s)
		}
	}
	if ctx.Err() != nil {
		t.Fatal("two requests ended the context")
	}
	raise(t, syscall.SIGTERM, ctx.Done()) // the third
	if status, ok := interrupted(ctx); !ok || status != 143 {
		t.Errorf("interrupted = %v, %v, want 143", status, ok)
	}
}

func TestRelayLeavesIgnoredSignals(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, r := newRelay(t.Context())
	defer r.stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	raise(t, syscall.SIGTERM, ctx.Done()) // comes after it
	if status, _ := interrupted(ctx); status != 143 {
		t.Errorf("ended with %v, want 143: SIGHUP was ignored before", status)
	}
}

func TestInterruptedByNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status, ok := interrupted(ctx); ok {
		t.Errorf("interrupted with %v", status)
	}
}

func TestNearFlag(t *testing.T) {
	a := &app{}
	run, _, err := a.root(nil).Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{"memroy": "memory", "evn": "env", "timeot": "timeout", "xyzzy": "", "x": ""} {
		if got := nearFlag(run, in); got != want {
			t.Errorf("nearFlag(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"env", "evn", 2}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestEveryCommandHelps: a sentence, and an example where there is an
// argument to give.
func TestEveryCommandHelps(t *testing.T) {
	a := &app{}
	for _, c := range a.root(nil).Commands() {
		if c.Short == "" {
			t.Errorf("%s has no description", c.CommandPath())
		}
		if strings.Contains(c.Use, " ") && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
	}
}

func TestPrintDoctor(t *testing.T) {
	r := host.Report{
		Default: sandbox.GVisor,
		Checks:  []driver.Check{{Name: "kernel", Verdict: driver.Yes, Reason: "6.1"}, {Name: "KVM", Verdict: driver.No, Reason: "none", Remedy: "load it"}},
		Boundaries: []driver.Report{{
			Boundary: sandbox.GVisor, Available: driver.No, Reason: "bad\x1b[31m",
			Checks: []driver.Check{{Name: "systrap", Verdict: driver.No, Needed: true, Reason: "why"}},
		}},
	}
	var b bytes.Buffer
	if err := printDoctor(&b, &r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  kernel      yes  6.1\n", "-> load it\n", "boundary gvisor, the default: no", "no, needed", "gvisor does not work here"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.ContainsRune(b.String(), 0x1b) {
		t.Errorf("control characters in\n%s", b.String())
	}
}

func TestSplitAddsUp(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	o := &oneRun{a: &app{began: began}, marks: marks{asked: at(5), created: at(105), exited: at(125), ended: at(150)}}
	o.created.Sandbox.Timeline = []sandbox.Step{
		{Name: "keeper", Took: 20 * time.Millisecond}, {Name: "keeper: create", Took: 40 * time.Millisecond},
		{Name: "keeper: start", Took: 10 * time.Millisecond}, {Name: "keeper: hello", Took: 25 * time.Millisecond},
	}
	got := o.split()
	want := timing{CLI: 10, Keeper: 20, Boot: 40, Start: 10, Guest: 25, Exec: 20, End: 25, Total: 150}
	if got != want {
		t.Errorf("split = %+v, want %+v", got, want)
	}
}

// TestWanted: the table that spares us building all commands knows each
// command by the names that it gives itself.
func TestWanted(t *testing.T) {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	all := a.subcommands()
	for _, s := range all {
		c := s.build()
		if got := append([]string{c.Name()}, c.Aliases...); !slices.Equal(got, s.names) {
			t.Errorf("the table says %v, the command %v", s.names, got)
		}
		for _, name := range s.names {
			if got := wanted(all, []string{name}); len(got) != 1 || got[0].names[0] != c.Name() {
				t.Errorf("%q builds %d commands", name, len(got))
			}
		}
	}
	for _, args := range [][]string{nil, {"help", "run"}, {"--help"}, {"nosuch"}, {"__complete", "r"}} {
		if got := wanted(all, args); len(got) != len(all) {
			t.Errorf("%q builds %d commands, want all", args, len(got))
		}
	}
}
