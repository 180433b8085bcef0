package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// record is what inspect says of a sandbox.
func (b *box) record() sandbox.Sandbox {
	b.t.Helper()
	var list []sandbox.Sandbox
	text := want(b.t, b.Belljar("inspect", "-o", "json", b.name), 0).Stdout
	if err := json.Unmarshal([]byte(text), &list); err == nil && len(list) == 1 {
		return list[0]
	}
	var one sandbox.Sandbox
	if err := json.Unmarshal([]byte(text), &one); err != nil {
		b.t.Fatalf("%v: %s", err, clip(text))
	}
	return one
}

// who is what a sandbox can be told by, from within.
func (b *box) who() (machine, boot, host, token string) {
	b.t.Helper()
	out := want(b.t, b.sh("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; cat /run/belljar/token"), 0).Stdout
	f := strings.Fields(out)
	if len(f) != 4 || len(f[0]) != 32 || len(f[1]) != 36 {
		b.t.Fatalf("%q", out)
	}
	return f[0], f[1], f[2], f[3]
}

// TestRestoreRenews: a resumed sandbox is the same machine booted anew, a copy
// is another machine, and hooks run in both.
func TestRestoreRenews(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work", "--user", "root")
	if r := b.record().Restore; r != nil {
		t.Errorf("booted, and restored: %+v", r)
	}
	machine, boot, _, token := b.who()
	want(t, b.sh(`mkdir -p /etc/belljar/restore.d && cd /etc/belljar/restore.d &&
printf '#!/bin/sh\necho $BELLJAR_SANDBOX_ID $BELLJAR_GENERATION >/tmp/hook\n' >10-good &&
printf '#!/bin/sh\necho "no luck" >&2; exit 7\n' >20-bad && chmod 755 10-good 20-bad`), 0)
	want(t, e.Belljar("pause", b.name), 0)
	m, bt, _, tk := b.who() // resumes it
	if m != machine || bt == boot || tk == token {
		t.Errorf("resumed: machine %s, was %s; boot %s, was %s; token %s, was %s", m, machine, bt, boot, tk, token)
	}
	rec := b.record()
	if r := rec.Restore; r == nil || r.Generation != rec.Generation || r.Entropy != sandbox.HostLive || r.Clock != sandbox.HostLive || r.ClockOffset != 0 || r.At.IsZero() {
		t.Errorf("%+v", rec.Restore)
	}
	if got := b.sh("cat /tmp/hook").Stdout; got != string(rec.ID)+" "+itoa(int(rec.Generation))+"\n" {
		t.Errorf("the hook wrote %q", got)
	}
	c, err := client.Dial(t.Context(), client.Options{StateDir: e.State, RuntimeDir: e.Run, NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events, err := c.Events(t.Context(), b.name, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	var told []string
	for {
		ev, err := events.Next()
		if err != nil {
			break
		}
		if ev.Kind == sandbox.EventRestore {
			told = append(told, ev.Message)
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "20-bad") || !strings.Contains(told[0], "exit code 7") || !strings.Contains(told[0], "no luck") {
		t.Errorf("told %q", told)
	}

	want(t, e.Belljar("fork", b.name, "-n", "2", "--name", "copy"), 0)
	seen := map[string]string{}
	for _, x := range []*box{b, {e, t, "copy-1"}, {e, t, "copy-2"}} {
		m, bt, host, tk := x.who()
		for _, v := range []string{m, bt, host, tk} {
			if seen[v] != "" {
				t.Errorf("%s and %s both have %s", seen[v], x.name, v)
			}
			seen[v] = x.name
		}
	}
	if seen[machine] != b.name || seen[bt] != b.name {
		t.Error("the source of a fork has become another machine, or booted")
	}
}
