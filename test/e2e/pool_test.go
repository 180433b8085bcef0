package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// pools lists the pools of an installation.
func pools(t testing.TB, e *testenv.Env) (out []sandbox.Pool) {
	t.Helper()
	decode(t, want(t, e.Belljar("pool", "ls", "-o", "json"), 0).Stdout, &out)
	return out
}

// filled waits until a pool has what it should.
func filled(t testing.TB, e *testenv.Env) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; {
		all := pools(t, e)
		full := len(all) > 0
		for _, p := range all {
			full = full && p.ReadyNow >= p.Ready && p.BootedNow >= p.Booted
		}
		if full {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not filled: %+v", all)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// unparked waits until nothing that waits is on the host: the pool is gone.
func unparked(t testing.TB, e *testenv.Env) {
	t.Helper()
	want(t, e.Belljar("pool", "rm", "host"), 0)
}

func TestPool(t *testing.T) {
	e := setup(t)
	want(t, e.Belljar("pool", "set", "host", "--ready", "2", "--booted", "1", "--max", "3"), 0)
	filled(t, e)
	decodeNone(t, e)

	a := create(t, e, "a", "--env", "WHOSE=a")
	if o := record(t, e, "a").Origin; o != sandbox.OriginReady {
		t.Errorf("a is %s", o)
	}
	got := want(t, a.sh("echo $WHOSE; hostname; cat /etc/hostname; cat /proc/sys/kernel/hostname"), 0).Stdout
	if got != "a\na\na\na\n" {
		t.Errorf("inside: %q", got)
	}

	// Other limits and mounts are served as without a pool, and it says so.
	create(t, e, "limited", "--memory", "200m")
	create(t, e, "mounted", "-v", t.TempDir()+":/mnt/x")
	for _, name := range []string{"limited", "mounted"} {
		if o := record(t, e, name).Origin; o != sandbox.OriginCold {
			t.Errorf("%s is %s", name, o)
		}
	}

	// A pool of the limits serves, and the record says what a new one's would.
	want(t, e.Belljar("pool", "set", "host", "--ready", "1", "--memory", "200m"), 0)
	filled(t, e)
	create(t, e, "claimed", "--memory", "200m")
	c, l := record(t, e, "claimed"), record(t, e, "limited")
	if c.Origin != sandbox.OriginReady || fmt.Sprint(c.Limits) != fmt.Sprint(l.Limits) {
		t.Errorf("claimed: %s, %+v; cold: %+v", c.Origin, c.Limits, l.Limits)
	}

	// A resume takes a kernel that has booted.
	want(t, a.sh("echo kept >/tmp/mark"), 0)
	want(t, e.Belljar("pause", "a"), 0)
	filled(t, e)
	if got := want(t, a.sh("cat /tmp/mark; hostname"), 0).Stdout; got != "kept\na\n" {
		t.Errorf("after the resume: %q", got)
	}
	if o := record(t, e, "a").Origin; o != sandbox.OriginBooted {
		t.Errorf("a was resumed %s", o)
	}
	// So does a snapshot, and it is another sandbox with the same files.
	want(t, e.Belljar("snapshot", "create", "a", "s"), 0)
	filled(t, e)
	want(t, e.Belljar("create", "--name", "copy", "--snapshot", "s"), 0)
	if o := record(t, e, "copy").Origin; o != sandbox.OriginBooted {
		t.Errorf("the copy is %s", o)
	}

	// What waits survives no daemon, the size does.
	want(t, e.Belljar("daemon", "stop"), 0)
	if all := pools(t, e); len(all) != 2 { // by the next daemon
		t.Errorf("pools while no daemon ran: %+v", all)
	}
	filled(t, e)
	if all := pools(t, e); len(all) != 2 {
		t.Errorf("after a restart: %+v", all)
	}
	if r := e.Belljar("pool", "set", "host", "--ready", "1000"); r.Code != 0 { // fits only a large machine
		contains(t, r.Stderr, "MiB", "a ready sandbox takes about", "hint:")
	}
	unparked(t, e)
	if r := e.Belljar("pool", "rm", "host"); r.Code == 0 {
		t.Error("a pool that is not there was removed")
	}
	want(t, e.Belljar("kill", "--all"), 0)
	nothingBut(t, e, "")
}

// decodeNone fails if a sandbox is listed: what waits is nobody's.
func decodeNone(t testing.TB, e *testenv.Env) {
	t.Helper()
	var list []json.RawMessage
	decode(t, want(t, e.Belljar("ls", "-o", "json"), 0).Stdout, &list)
	if len(list) != 0 {
		t.Errorf("%d sandboxes are listed", len(list))
	}
}

// TestPoolOfReplacedTemplate: nothing of a template is served once it has been
// made anew under its name, and what waits keeps nobody from removing it.
func TestPoolOfReplacedTemplate(t *testing.T) {
	e := setup(t)
	root := func(text string) string {
		dir := t.TempDir()
		for _, d := range []string{"etc", "bin"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "etc/which"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	which := func(name string) string {
		create(t, e, name, "--template", "tpl", "--user", "root")
		to := filepath.Join(t.TempDir(), "which")
		want(t, e.Belljar("cp", name+":/etc/which", to), 0)
		b, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	want(t, e.Belljar("template", "import", "tpl", root("one")), 0)
	want(t, e.Belljar("pool", "set", "tpl", "--ready", "2", "--max", "2"), 0)
	filled(t, e)
	if got := which("a"); got != "one" || record(t, e, "a").Origin != sandbox.OriginReady {
		t.Errorf("the first: %q, %s", got, record(t, e, "a").Origin)
	}
	want(t, e.Belljar("kill", "a"), 0)
	filled(t, e)
	want(t, e.Belljar("template", "rm", "tpl"), 0)
	if r := e.Belljar("create", "--template", "tpl"); r.Code == 0 {
		t.Error("a sandbox of a template that was removed")
	}
	want(t, e.Belljar("template", "import", "tpl", root("two")), 0)
	if got := which("b"); got != "two" || record(t, e, "b").Origin != sandbox.OriginCold {
		t.Errorf("the second: %q, %s", got, record(t, e, "b").Origin)
	}
	filled(t, e)
	if got := which("c"); got != "two" || record(t, e, "c").Origin != sandbox.OriginReady {
		t.Errorf("the third: %q, %s", got, record(t, e, "c").Origin)
	}
}

// TestPoolUnderClaims: 500 claims from 16 clients while the pool is refilled,
// some with mounts and other limits. Each gets a sandbox that nobody had before,
// with what it asked for and nothing of another's. BELLJAR_POOL_CLAIMS sets the
// number.
func TestPoolUnderClaims(t *testing.T) {
	claims := 100
	if v := os.Getenv("BELLJAR_POOL_CLAIMS"); v != "" {
		if _, err := fmt.Sscan(v, &claims); err != nil {
			t.Fatal(err)
		}
	}
	e := setup(t)
	want(t, e.Belljar("pool", "set", "host", "--ready", "6", "--booted", "2", "--max", "12"), 0)
	filled(t, e)
	u := &claimers{t: t, e: e, seen: map[string]int{}, origins: map[sandbox.Origin]int{}}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		c, err := client.Dial(t.Context(), client.Options{StateDir: e.State, RuntimeDir: e.Run, NoStart: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wg.Go(func() {
			for n := next.Add(1); n <= int64(claims) && !t.Failed(); n = next.Add(1) {
				if err := u.one(c, int(n)); err != nil {
					t.Errorf("claim %d: %+v", n, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%v; %+v", u.origins, pools(t, e))
	if u.origins[sandbox.OriginReady] == 0 {
		t.Error("nothing was claimed")
	}
	unparked(t, e)
	nothingBut(t, e, "")
}

type claimers struct {
	t *testing.T
	e *testenv.Env

	mu      sync.Mutex
	seen    map[string]int // tokens, machine and boot IDs
	origins map[sandbox.Origin]int
}

// look prints what a sandbox can tell of whose it is, and leaves a mark.
const look = `echo $WHOSE; hostname; cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id /run/belljar/token
ls /mnt/x 2>/dev/null; ls /tmp; env | grep -c WHOSE; echo $WHOSE >/tmp/mark`

func (u *claimers) one(c *client.Client, n int) error {
	ctx, cancel := context.WithTimeout(u.t.Context(), 2*time.Minute)
	defer cancel()
	name := "n" + strconv.Itoa(n)
	spec := sandbox.Spec{Name: name, Env: map[string]string{"WHOSE": name}, User: "root"}
	memory, in := int64(sandbox.DefaultMemoryBytes), ""
	switch n % 10 {
	case 3:
		dir := u.t.TempDir()
		in = "file-of-" + name
		if err := os.WriteFile(filepath.Join(dir, in), nil, 0o644); err != nil {
			return err
		}
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		handles, err := c.SendFiles(ctx, []*os.File{f})
		if err != nil {
			return err
		}
		spec.Mounts = []sandbox.Mount{{Handle: handles[0], Source: dir, Target: "/mnt/x"}}
	case 7:
		memory = 300 << 20
		spec.Limits.MemoryBytes = memory
	}
	made, err := c.Create(ctx, spec, &client.Start{ID: "look", Argv: []string{"/bin/sh", "-c", look}})
	if err != nil {
		return err
	}
	if made.StartError != nil {
		return made.StartError
	}
	id := string(made.Sandbox.ID)
	var out bytes.Buffer
	if exit, err := c.Follow(ctx, id, "look", client.Streams{Stdout: &out, Stderr: &out}); err != nil || exit.Status() != 0 {
		return fmt.Errorf("%+v, %w: %s", exit, err, out.String())
	}
	if err := u.check(&made.Sandbox, strings.Split(out.String(), "\n"), name, in, memory); err != nil {
		return fmt.Errorf("%w in %q of a %s one", err, out.String(), made.Sandbox.Origin)
	}
	_, err = c.Kill(ctx, id)
	return err
}

// check looks at what a sandbox has told: its lines, and what its record says.
func (u *claimers) check(sb *sandbox.Sandbox, lines []string, name, in string, memory int64) error {
	tail := []string{"1", ""}
	if in != "" {
		tail = append([]string{in}, tail...)
	}
	if len(lines) != 6+len(tail) || fmt.Sprint(lines[6:]) != fmt.Sprint(tail) {
		return fmt.Errorf("want %v after the identity", tail)
	}
	if lines[0] != name || lines[1] != name || lines[2] != name {
		return fmt.Errorf("want %s three times", name)
	}
	wantMemory := strconv.FormatInt(memory>>20, 10) + "MiB"
	if memory == sandbox.DefaultMemoryBytes {
		wantMemory = "1GiB"
	}
	for _, l := range sb.Limits {
		if l.Name == sandbox.LimitMemory && (l.Value != wantMemory || l.Explicit != (memory != sandbox.DefaultMemoryBytes)) {
			return fmt.Errorf("memory is %+v, want %s", l, wantMemory)
		}
	}
	if (in != "" || memory != sandbox.DefaultMemoryBytes) && sb.Origin != sandbox.OriginCold {
		return fmt.Errorf("it was claimed")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.origins[sb.Origin]++
	for _, unique := range append(lines[3:6:6], string(sb.ID)) {
		if u.seen[unique]++; u.seen[unique] > 1 {
			return fmt.Errorf("%q is another's too", unique)
		}
	}
	return nil
}

// TestPoolOutlivesItsKeeper: a keeper that dies takes what waits with it, and
// the next create never hears of it.
func TestPoolOutlivesItsKeeper(t *testing.T) {
	e := setup(t)
	want(t, e.Belljar("pool", "set", "host", "--ready", "2", "--booted", "1", "--max", "3"), 0)
	filled(t, e)
	for i := range 5 {
		b, _ := exec.Command("pgrep", "-f", "belljar-engine keeper.*"+e.Run).Output() // none is an exit code of 1
		for _, pid := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			syscall.Kill(n, syscall.SIGKILL)
		}
		want(t, create(t, e, "after"+itoa(i)).sh("echo hi"), 0)
		filled(t, e)
		want(t, e.Belljar("kill", "after"+itoa(i)), 0)
	}
	unparked(t, e)
	nothingBut(t, e, "")
}

// TestPoolCrashPoints has the daemon die, as by kill -9, as it fills its pool
// and as somebody claims. BELLJAR_CRASH_ROUNDS sets the rounds per point.
func TestPoolCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	e := setup(t)
	bystander := create(t, e, "bystander")
	id := record(t, e, "bystander").ID
	for _, point := range manager.PoolCrashPoints() {
		t.Run(point, func(t *testing.T) {
			for range rounds {
				want(t, e.Belljar("pool", "set", "host", "--ready", "1", "--booted", "1", "--max", "2"), 0)
				crashInPool(t, e, point)
				if got := record(t, e, "bystander"); got.ID != id || got.State != sandbox.Running {
					t.Fatalf("the bystander: got %s, %s", got.ID, got.State)
				}
				want(t, bystander.sh("true"), 0)
				if left := settled(t, e, id); len(left) != 0 {
					t.Errorf("a sandbox that nobody was told of: %+v", left)
				}
				filled(t, e) // the next daemon keeps the pool
				create(t, e, "next")
				want(t, e.Belljar("exec", "next", "--", "true"), 0)
				want(t, e.Belljar("kill", "next"), 0)
				unparked(t, e)
				nothingBut(t, e, id)
			}
		})
	}
}

// crashInPool restarts the daemon so that it dies at point, and has it go there.
func crashInPool(t *testing.T, e *testenv.Env, point string) {
	t.Helper()
	want(t, e.Belljar("daemon", "stop"), 0)
	d := e.Command("daemon", "run", "--crash-points")
	d.Env = append(d.Env, "BELLJAR_CRASH="+point)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Wait() }()
	var err error
	for dead := false; !dead; {
		select {
		case err = <-ended:
			dead = true
		case <-time.After(20 * time.Millisecond):
			if !strings.HasPrefix(point, "claim") {
				continue // it fills the pool by itself
			}
			var all []sandbox.Pool
			r := e.Belljar("pool", "ls", "-o", "json")
			if r.Code == 0 && json.Unmarshal([]byte(r.Stdout), &all) == nil && len(all) == 1 && all[0].ReadyNow == 1 {
				e.Belljar("create", "--name", "victim") // fails when the daemon dies of it
				err, dead = <-ended, true
			}
		}
	}
	if ws, ok := d.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon ended with %v, want it killed", err)
	}
}
