package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// pythonTemplate imports a template that holds Python, a shell and a few tools,
// copied from this machine with the libraries that they need.
func pythonTemplate(t testing.TB, e *testenv.Env) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for _, dir := range []string{"bin", "usr/bin", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(python, "-c", `import os, sys, sysconfig
print(os.path.realpath(sys.executable)); print(sysconfig.get_path("stdlib"))`).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	script := `set -e
copy() { mkdir -p "$R$(dirname "$1")"; [ -e "$R$1" ] || cp -L "$1" "$R$1"; }
for p in ` + lines[0] + ` $(readlink -f $(command -v sh)) $(command -v cat) $(command -v wc) $(command -v sleep); do
	copy $p
	for l in $(ldd $p | grep -o '/[^ ]*'); do copy $l; done
done
for l in $(find ` + lines[1] + `/lib-dynload -name '*.so' | xargs ldd | grep -o '/[^ :]*' | grep -v lib-dynload | sort -u); do copy $l; done
mkdir -p $R$(dirname ` + lines[1] + `)
cp -a ` + lines[1] + ` $R` + lines[1] + `
rm -rf $R` + lines[1] + `/test $R` + lines[1] + `/site-packages $R` + lines[1] + `/config-*
ln -sf $(readlink -f $(command -v sh)) $R/bin/sh
[ -e $R` + python + ` ] || ln -s ` + lines[0] + ` $R` + python + `
`
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "R="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want(t, e.Belljar("template", "import", "py", root), 0)
	return root
}

// snapshots lists what is on disk of snapshots and forks.
func snapshots(t testing.TB, e *testenv.Env) (out []string) {
	t.Helper()
	for _, dir := range []string{"snapshots", "forks"} {
		entries, err := os.ReadDir(filepath.Join(e.State, dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, f := range entries {
			out = append(out, f.Name())
		}
	}
	return out
}

// TestSnapshotKeepsEverything: what starts from a snapshot, and what is forked,
// has the processes, the memory, the descriptors and the sockets of the source,
// and they go their own ways from there.
func TestSnapshotKeepsEverything(t *testing.T) {
	needPython(t)
	e := setup(t)
	b := create(t, e, "work", "--env", "GREETING=hello")
	want(t, e.Belljar("exec", "-d", b.name, "--", python, "-c", keeps), 0)
	want(t, b.sh("while ! [ -e /tmp/ready ]; do sleep 0.05; done"), 0)
	first := ask(b)
	want(t, e.Belljar("snapshot", "create", b.name, "kept:v1"), 0)
	if now := ask(b); now.pid != first.pid || now.secret != first.secret || now.served != "2" {
		t.Errorf("the source has changed: %+v, was %+v", now, first)
	}
	want(t, e.Belljar("fork", b.name, "-n", "2", "--name", "copy"), 0)
	want(t, e.Belljar("kill", b.name), 0)
	killDaemon(t, e)
	want(t, e.Belljar("ls"), 0)
	boxes := []*box{{e, t, "copy-1"}, {e, t, "copy-2"}}
	for _, name := range []string{"again", "third"} {
		boxes = append(boxes, create(t, e, name, "--snapshot", "kept:v1"))
	}
	for i, c := range boxes {
		served := 2 // when it was kept one had been, when it was copied two
		if strings.HasPrefix(c.name, "copy") {
			served = 3
		}
		for n := range 2 {
			now := ask(c)
			if now.pid != first.pid || now.child != first.child || now.ended != "None" || now.secret != first.secret || now.served != itoa(served+n) {
				t.Errorf("%d: got %+v, want the processes and the memory of %+v, %d served", i, now, first, served+n)
			}
		}
		if got := want(t, c.sh("echo $GREETING; hostname; cat /tmp/log | wc -l"), 0).Stdout; strings.Join(strings.Fields(got), " ") != "hello "+c.name+" "+itoa(served+1) {
			t.Errorf("%d: %q", i, got)
		}
	}
	want(t, e.Belljar("snapshot", "rm", "kept:v1"), 0)
	if left := snapshots(t, e); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestSnapshotMoves: an exported snapshot starts in a second state directory of
// the same installation key that has the same template.
func TestSnapshotMoves(t *testing.T) {
	needPython(t)
	e := setup(t)
	root := pythonTemplate(t, e)
	b := create(t, e, "work", "--template", "py", "-u", "root")
	want(t, e.Belljar("exec", "-d", b.name, "--", python, "-c", keeps), 0)
	want(t, b.sh("while ! [ -e /tmp/ready ]; do sleep 0.05; done"), 0)
	first := ask(b)
	want(t, e.Belljar("snapshot", "create", b.name, "kept"), 0)
	file := filepath.Join(t.TempDir(), "kept.tar.zst")
	want(t, e.Belljar("snapshot", "save", "kept", "-o", file), 0)

	other := testenv.New(t)
	want(t, other.Belljar("template", "import", "py", root), 0)
	contains(t, want(t, other.Belljar("snapshot", "load", file), 125).Stderr, "another installation")
	want(t, other.Belljar("daemon", "stop"), 0)
	key, err := os.ReadFile(filepath.Join(e.State, "installation.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other.State, "installation.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, other.Belljar("snapshot", "load", "--name", "moved", file), 0)
	c := create(t, other, "there", "--snapshot", "moved")
	if now := ask(c); now.pid != first.pid || now.secret != first.secret || now.ended != "None" || now.served != "2" {
		t.Errorf("got %+v, want what was saved: %+v", now, first)
	}
}

// TestSnapshotFlippedBits: one bit of a snapshot's files that has changed is
// found by every start, but for one in the pages of memory, and by verify, load
// and resume --verify=full wherever it is.
func TestSnapshotFlippedBits(t *testing.T) {
	flips := 100
	if v := os.Getenv("BELLJAR_FLIPS"); v != "" {
		if _, err := fmt.Sscan(v, &flips); err != nil {
			t.Fatal(err)
		}
	}
	e := setup(t)
	b := create(t, e, "work")
	want(t, e.Belljar("snapshot", "create", b.name, "kept"), 0)
	want(t, e.Belljar("pause", b.name), 0)
	r := rand.New(rand.NewPCG(3, 4))
	flip := func(path string) (undo func()) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		at, one := r.Int64N(info.Size()), make([]byte, 1)
		if _, err := f.ReadAt(one, at); err != nil {
			t.Fatal(err)
		}
		good := bytes.Clone(one)
		one[0] ^= 1 << r.IntN(8)
		if _, err := f.WriteAt(one, at); err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := f.WriteAt(good, at); err != nil {
				t.Error(err)
			}
			f.Close()
		}
	}
	dirs := map[string]string{}
	for _, kind := range []string{"snapshots", "images"} {
		entries, err := os.ReadDir(filepath.Join(e.State, kind))
		if err != nil || len(entries) != 1 {
			t.Fatalf("%s: %v, %v", kind, entries, err)
		}
		dirs[kind] = filepath.Join(e.State, kind, entries[0].Name())
	}
	for kind, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for n := range flips {
			name := files[n%len(files)].Name()
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 || name == "names.json" {
				continue // names are looked at when a daemon starts
			}
			undo := flip(filepath.Join(dir, name))
			full, quick := []string{"snapshot", "verify", "kept"}, []string{"create", "--snapshot", "kept"}
			if kind == "images" {
				full, quick = []string{"resume", "--verify=full", b.name}, []string{"resume", b.name}
			}
			contains(t, want(t, e.Belljar(full...), 125).Stderr, name)
			if name != "pages" {
				contains(t, want(t, e.Belljar(quick...), 125).Stderr, name)
			}
			undo()
		}
	}
	want(t, e.Belljar("snapshot", "verify", "kept"), 0)
	want(t, e.Belljar("resume", "--verify=full", b.name), 0)
	contains(t, want(t, e.Belljar("resume", "--verify=full", b.name), 125).Stderr, "running")
	want(t, e.Belljar("run", "--snapshot", "kept", "--", "true"), 0)
}

// TestSnapshotCrashPoints has the daemon die, as by kill -9, at each step of a
// snapshot, a fork and a removal, of a real sandbox.
func TestSnapshotCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	e := setup(t)
	for _, point := range manager.SnapshotCrashPoints() {
		t.Run(point, func(t *testing.T) {
			for range rounds {
				b := create(t, e, "work")
				want(t, b.sh("echo here >/dev/shm/a"), 0)
				act, kept := []string{"snapshot", "create", "work", "kept"}, 0
				switch point {
				case manager.CrashForkSaved:
					act = []string{"fork", "work", "-n", "2"}
				case manager.CrashSnapshotRemoving:
					want(t, e.Belljar(act...), 0)
					act, kept = []string{"snapshot", "rm", "kept"}, 1
				case manager.CrashSnapshotPublished:
					kept = 1
				}
				crashDoing(t, e, point, act...)
				if got := want(t, b.sh("cat /dev/shm/a"), 0).Stdout; got != "here\n" {
					t.Errorf("got %q", got)
				}
				if sb := record(t, e, "work"); sb.State != sandbox.Running {
					t.Errorf("the source is %s", sb.State)
				}
				if got := snapshots(t, e); len(got) != kept {
					t.Fatalf("stored: %v, want %d", got, kept)
				}
				if kept == 1 {
					if got := want(t, e.Belljar("run", "--snapshot", "kept", "--", "cat", "/dev/shm/a"), 0).Stdout; got != "here\n" {
						t.Errorf("from the snapshot: %q", got)
					}
					want(t, e.Belljar("snapshot", "rm", "kept"), 0)
				}
				want(t, e.Belljar("kill", "work"), 0)
				for end := time.Now().Add(20 * time.Second); len(held(e, ""))+len(snapshots(t, e)) > 0; {
					if time.Now().After(end) {
						t.Fatalf("left: %v, %v", held(e, ""), snapshots(t, e))
					}
					<-time.After(50 * time.Millisecond)
				}
			}
		})
	}
}

// crashDoing restarts the daemon so that it dies at point, and has it go there.
func crashDoing(t *testing.T, e *testenv.Env, point string, args ...string) {
	t.Helper()
	want(t, e.Belljar("daemon", "stop"), 0)
	d := e.Command("daemon", "run", "--crash-points")
	d.Env = append(d.Env, "BELLJAR_CRASH="+point)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Wait() }()
	for end := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat(filepath.Join(e.Run, "daemon.sock")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the daemon does not serve")
		}
		<-time.After(10 * time.Millisecond)
	}
	e.Belljar(args...) // fails when the daemon dies of it
	err := <-ended
	if ws, ok := d.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon ended with %v, want it killed", err)
	}
}
