package daemon_test

import (
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// orphaned reads events until one tells that a process was killed for want of a
// client, and then its exit.
func orphaned(t *testing.T, c *client.Client, ref, process string) {
	t.Helper()
	events, err := c.Events(t.Context(), ref, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	said := false
	for {
		ev, err := events.Next()
		if err != nil {
			t.Fatalf("the events end before the process: %v", err)
		}
		if ev.Process != process {
			continue
		}
		switch ev.Kind {
		case sandbox.EventOrphan:
			said = true
		case sandbox.EventExit:
			if !said {
				t.Errorf("it ended otherwise: %s", ev.Message)
			}
			return
		}
	}
}

// A process with a lease ends when its client has gone, also when the daemon
// dies with the client; one without lives on.
func TestLeaseEndsWithItsClient(t *testing.T) {
	for name, daemonDies := range map[string]bool{"client dies": false, "both die": true} {
		t.Run(name, func(t *testing.T) {
			in := install(t)
			c := in.dial()
			sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
			ref := string(sb.ID)
			free, err := c.Start(t.Context(), ref, client.Start{Argv: []string{"/bin/sleep", "7602"}})
			if err != nil {
				t.Fatal(err)
			}
			p, out, err := c.StartAttached(t.Context(), ref, client.Start{Argv: []string{"/bin/sleep", "7603"}, Lease: 2 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			out.Close()
			if daemonDies {
				in.killDaemon()
				within(t, 20*time.Second, "the next daemon", func() bool { _, err := c.Info(t.Context()); return err == nil })
			}
			orphaned(t, c, ref, p.ID)
			if q, err := c.Process(t.Context(), ref, free.ID); err != nil || q.Exit != nil {
				t.Errorf("the process without a lease: got %+v, %v", q, err)
			}
		})
	}
}
