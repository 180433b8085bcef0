package e2e

import (
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestOrdinaryUser: an ordinary user of the host gets sandboxes, too: run, a
// daemon of their own, both users inside. A limit that was asked for is
// enforced or refused, never dropped; a default one tells which.
func TestOrdinaryUser(t *testing.T) {
	e := setup(t)
	if e.UID() == 0 {
		e.AsUser(12346)
	}
	r := want(t, e.Belljar("run", "--", "sh", "-c", "id -u; exit 3"), 3)
	if r.Stdout != "1000\n" {
		t.Errorf("id -u: %q", r.Stdout)
	}
	r = want(t, e.Belljar("run", "-u", "root", "--", "sh", "-c", "id -u; touch /etc/x && echo written"), 0)
	if r.Stdout != "0\nwritten\n" {
		t.Errorf("as root inside: %q", r.Stdout)
	}
	b := create(t, e, "work")
	want(t, b.exec("true"), 0)
	want(t, b.exec("--timeout", "1s", "--", "sh", "-c", "setsid sleep 7005 & wait"), 124)
	if n := b.left("7005"); n != "0" {
		t.Errorf("%s processes are left", n)
	}

	var got sandbox.Sandbox
	decode(t, want(t, e.Belljar("inspect", b.name), 0).Stdout, &got)
	for _, l := range got.Limits {
		if !l.Enforced && l.Reason == "" {
			t.Errorf("%s is not enforced and does not say why", l.Name)
		}
		if l.Name != sandbox.LimitMemory {
			continue
		}
		r := e.Belljar("run", "--memory", "256m", "--", "true")
		switch {
		case l.Enforced && r.Code != 0:
			t.Errorf("an enforceable limit was refused: %s", r.Stderr)
		case !l.Enforced && (r.Code != 125 || !strings.HasPrefix(r.Stderr, `belljar: memory "256MiB": this host cannot enforce`)):
			t.Errorf("a limit that cannot be enforced: %d, %s", r.Code, r.Stderr)
		}
	}
}
