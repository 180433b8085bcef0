package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest"
	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// again is the hello that a restored guest gets after b's last.
func again(b *box) wire.Hello {
	b.hi.Generation++
	h := b.hi
	h.Restored, h.Entropy, h.Clock = true, sandbox.HostLive, sandbox.HostLive
	b.Client = guestclient.New(b.host, "http://guest", h.Generation)
	return h
}

func TestRestored(t *testing.T) {
	b := newBox(t, options{})
	seen := map[string]bool{}
	for range 3 {
		if err := b.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		h := again(b)
		sent := time.Now()
		reply, err := b.Hello(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		r := reply.Restore
		if err := reply.Check(nil); err != nil || r.Answers(&h) != nil {
			t.Fatalf("%v, %v: %+v", err, r.Answers(&h), r)
		}
		if seen[r.Draw] || r.ClockOffset(sent, time.Now()) != 0 || r.Took <= 0 || len(r.Hooks) > 0 {
			t.Errorf("%+v after %v", r, seen)
		}
		seen[r.Draw] = true
	}
	if err := b.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := again(b)
	h.Entropy = sandbox.GuestState
	if _, err := b.Hello(t.Context(), h); sandbox.KindOf(err) != sandbox.Unsupported {
		t.Errorf("random bytes that nobody can renew: %v", err)
	}
	if err := b.Ping(t.Context()); err == nil {
		t.Error("the guest serves after a refused hello")
	}
	b.hi.Generation++
	reply, err := b.Hello(t.Context(), b.hi)
	if err != nil || reply.Restore != nil {
		t.Errorf("not restored: %+v, %v", reply.Restore, err)
	}
}

// TestMachineID: the files are written when it is another machine, and then
// only.
func TestMachineID(t *testing.T) {
	b := newInit(t, wire.GuestLimits{})
	dir := filepath.Dir(b.machineID())
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("kept\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hello := func(id string) {
		t.Helper()
		h := again(b)
		h.MachineID = id
		if _, err := b.Hello(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, text string) {
		t.Helper()
		if got, _ := os.ReadFile(filepath.Join(dir, name)); string(got) != text {
			t.Errorf("%s: %q, want %q", name, got, text)
		}
	}
	one, two := strings.Repeat("1", 32), strings.Repeat("2", 32)
	hello(one)
	want("machine-id", one+"\n")
	want("dbus-id", "") // is not made
	if err := os.WriteFile(filepath.Join(dir, "dbus-id"), []byte(strings.Repeat("x", 99)), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.machineID(), []byte("own\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hello(one)
	want("machine-id", "own\n") // the same machine
	hello(two)
	want("machine-id", two+"\n")
	want("dbus-id", two+"\n")
	os.Remove(b.machineID())
	if err := os.Symlink(elsewhere, b.machineID()); err != nil {
		t.Fatal(err)
	}
	hello(one)
	want("machine-id", one+"\n")
	if got, _ := os.ReadFile(elsewhere); string(got) != "kept\n" {
		t.Errorf("through a link: %q", got)
	}
}

// machineID is where the guest of newInit writes its machine's ID.
func (b *box) machineID() string { return b.cfg.MachineIDs[0] }

// hooked starts a guest with hooks, by name, that has not been restored yet.
func hooked(t *testing.T, hooks map[string]string) *box {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restore.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range hooks {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newBox(t, options{cfg: guest.Config{HookDir: dir}})
}

func TestHooks(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	b := hooked(t, map[string]string{
		"20-second": "#!/bin/sh\necho second >>" + out + "\necho told; echo wrong >&2; exit 3\n",
		"10-first":  "#!/bin/sh\necho first $BELLJAR_SANDBOX_ID $BELLJAR_GENERATION >>" + out + "\n",
		"30-long":   "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x; echo end\n",
		"40-daemon": "#!/bin/sh\nsleep 1000 & echo $! >>" + out + "\n",
		"50-broken": "#!/nonesuch\n",
		"60.bak":    "#!/bin/sh\necho no >>" + out + "\n",
	})
	if err := os.WriteFile(filepath.Join(b.cfg.HookDir, "70-data"), []byte("#!/bin/sh\necho no >>"+out+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := again(b)
	reply, err := b.Hello(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if err := reply.Check(nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range reply.Restore.Hooks {
		got = append(got, fmt.Sprintf("%s %t %d %t %t", k.Name, k.Failed(), k.Exit.Status(), k.Cut, k.Error != ""))
	}
	want := []string{
		"10-first false 0 false false", "20-second true 3 false false", "30-long false 0 true false",
		"40-daemon false 0 false false", "50-broken true 0 false true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := reply.Restore.Hooks[1].Output; s != "told\nwrong\n" {
		t.Errorf("output %q", s)
	}
	if s := reply.Restore.Hooks[2].Output; len(s) != wire.MaxHookOutput || !strings.HasSuffix(s, "xend\n") {
		t.Errorf("output of %d bytes: ...%q", len(s), s[max(0, len(s)-10):])
	}
	text, _ := os.ReadFile(out)
	var pid int
	if _, err := fmt.Sscanf(string(text), "first "+string(h.SandboxID)+" "+fmt.Sprint(h.Generation)+"\nsecond\n%d\n", &pid); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		t.Errorf("what a hook has started is gone: %v", err)
	}
	list, err := b.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Tag != "restore.d/40-daemon" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := b.Kill(t.Context(), list[0].ID); err != nil {
		t.Error(err)
	}
	// Only a restore runs them.
	b.hi.Generation++
	if reply, err := b.Hello(t.Context(), b.hi); err != nil || reply.Restore != nil {
		t.Errorf("%+v, %v", reply, err)
	}
	if again, _ := os.ReadFile(out); string(again) != string(text) {
		t.Errorf("%q", again)
	}
}

// TestHooksBounded: hooks hold the sandbox up no longer than their time.
func TestHooksBounded(t *testing.T) {
	hooks := map[string]string{"00-slow": "#!/bin/sh\necho here; sleep 1000\n"}
	for i := range wire.MaxHooks {
		hooks[fmt.Sprintf("%02d", i+10)] = "#!/bin/sh\n"
	}
	b := hooked(t, hooks)
	began := time.Now()
	reply, err := b.Hello(t.Context(), again(b))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < wire.HookTime || took > 2*wire.HookTime {
		t.Errorf("took %v", took)
	}
	r := reply.Restore
	if err := reply.Check(nil); err != nil || len(r.Hooks) != 1 || !r.Hooks[0].Exit.TimedOut || r.Hooks[0].Output != "here\n" || r.HooksLeft != wire.MaxHooks {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestNotes: what the guest notes of itself is there after each hello, also when
// somebody has cleaned up, and no longer than it is.
func TestNotes(t *testing.T) {
	b := newInit(t, wire.GuestLimits{})
	for n, clean := range []bool{false, true, false} {
		if clean {
			for _, name := range []string{"generation", "token"} {
				if err := os.Remove(filepath.Join(b.cfg.RunDir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		h := again(b)
		h.Token = strings.Repeat("t", 9-n)
		if _, err := b.Hello(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"generation": fmt.Sprintln(h.Generation), "token": h.Token + "\n"} {
			if got, _ := os.ReadFile(filepath.Join(b.cfg.RunDir, name)); string(got) != want {
				t.Errorf("%d: %s is %q, want %q", n, name, got, want)
			}
		}
	}
}
