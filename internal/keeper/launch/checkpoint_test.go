package launch_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// saver is a keeper that runs gVisor and belljar-guest.
type saver struct {
	*keeperclient.Client
	t    *testing.T
	req  *wire.Create
	opts launch.Options
	done <-chan struct{} // closed when the keeper is gone
}

func newSaver(t *testing.T, crash keeper.CrashPoint) *saver {
	t.Helper()
	return newSaverOf(t, testenv.Bin(t), crash)
}

// newSaverOf is newSaver with the programs in bin.
func newSaverOf(t *testing.T, bin string, crash keeper.CrashPoint) *saver {
	t.Helper()
	testenv.NeedBoundary(t, sandbox.GVisor)
	w := setup(t)
	w.Engine, w.Crash = filepath.Join(bin, "belljar-engine"), crash
	p := begin(t, w.Options)
	s := &saver{Client: p.Client(), t: t, req: createReq(), opts: w.Options, done: p.Done()}
	t.Cleanup(func() { s.Close() })
	s.req.Guest, s.req.Root = filepath.Join(bin, "belljar-guest"), emptyRoot(t)
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if fi, err := os.Lstat("/" + l); err == nil && fi.Mode()&os.ModeSymlink != 0 {
			os.Symlink("usr/"+l, filepath.Join(s.req.Root.Path, l))
		}
	}
	for _, d := range []string{"usr", "etc", "run", "root"} {
		if err := os.Mkdir(filepath.Join(s.req.Root.Path, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	passwd := filepath.Join(s.req.Root.Path, "etc/passwd")
	if err := os.WriteFile(passwd, []byte("root:x:0:0::/root:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.req.Root.Binds = append(s.req.Root.Binds, driver.Bind{Source: "/usr", Target: "/usr"})
	s.req.Hello.Hostname, s.req.Hello.Workdir = "box", "/"
	return s
}

func (s *saver) create(image string, generation uint64) {
	s.t.Helper()
	req := *s.req
	req.Image, req.Hello.Generation = image, generation
	if _, err := s.Create(s.t.Context(), &req); err != nil {
		s.t.Fatalf("create: %+v", sandbox.AsError(err))
	}
}

func (s *saver) save(keep bool, generation uint64) string {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	h := s.req.Hello
	h.Generation = generation
	got, err := s.Checkpoint(s.t.Context(), s.req.ID, wire.Checkpoint{Dir: dir, Keep: keep, Hello: h})
	if err != nil {
		s.t.Fatalf("checkpoint: %+v", sandbox.AsError(err))
	}
	if len(got.Files) != 4 || keep && (got.Generation != generation || got.Stopped <= 0) {
		s.t.Errorf("%+v", got)
	}
	return dir
}

func (s *saver) guest(generation uint64) *guestclient.Client {
	return guestclient.New(s.Guest(s.req.ID, generation), "http://keeper", generation)
}

// sh runs a command and returns what it prints.
func (s *saver) sh(generation uint64, id, script string) string {
	s.t.Helper()
	g := s.guest(generation)
	if _, err := g.Start(s.t.Context(), guest.Start{ID: id, Argv: []string{"/bin/sh", "-c", script}, User: "root", KeepTree: true}); err != nil {
		s.t.Fatalf("%q: %+v", script, sandbox.AsError(err))
	}
	return s.read(g, id, 0, true)
}

// read reads the output of a process from off on: to its end, or one piece.
func (s *saver) read(g *guestclient.Client, id string, off int64, whole bool) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	o, err := g.Attach(ctx, id, off, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer o.Close()
	var out bytes.Buffer
	for {
		e, err := o.Next()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			s.t.Fatalf("after %q: %v", out.String(), err)
		}
		out.Write(e.Data)
		if e.Exit != nil || !whole && len(e.Data) > 0 {
			return out.String()
		}
	}
}

// TestSaveAndRestore: processes go on with their state, descriptors and
// numbers, their output is not lost, and identity is new.
func TestSaveAndRestore(t *testing.T) {
	s := newSaver(t, "")
	s.create("", 1)
	g := s.guest(1)
	const counter = `n=0; exec 9>/tmp/log; trap 'n=$((n+100))' USR1; while read x; do n=$((n+1)); echo $n $x; echo $n >&9; done; echo end`
	p, err := g.Start(t.Context(), guest.Start{ID: "counter", Argv: []string{"/bin/sh", "-c", counter}, User: "root", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	off := int64(0)
	say := func(generation uint64, what string) string {
		t.Helper()
		if off, err = s.guest(generation).Stdin(t.Context(), "counter", off, strings.NewReader(what+"\n"), false); err != nil {
			t.Fatal(err)
		}
		return what
	}
	say(1, "a")
	if got := s.read(g, "counter", 0, false); got != "1 a\n" {
		t.Fatalf("%q", got)
	}
	say(1, "b") // whose answer nobody reads before the image
	boot := s.sh(1, "boot1", "cat /proc/sys/kernel/random/boot_id")

	kept := s.save(true, 2)
	say(2, "c")
	if got := s.sh(2, "look2", "cat /tmp/log; hostname"); got != "1\n2\n3\nbox\n" {
		t.Errorf("the source: %q", got)
	}
	last := s.save(false, 3)
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after the end: %v, %v", list, err)
	}

	for n, c := range []struct{ image, before string }{{kept, "1 a\n2 b\n"}, {last, "1 a\n2 b\n3 c\n"}, {kept, "1 a\n2 b\n"}} {
		off = int64(2 * strings.Count(c.before, "\n"))
		generation := uint64(10 + n)
		s.create(c.image, generation)
		say(generation, "z")
		again := s.guest(generation)
		want := c.before + strconv.Itoa(strings.Count(c.before, "\n")+1) + " z\n"
		if _, err := again.Stdin(t.Context(), "counter", off, nil, true); err != nil {
			t.Fatal(err)
		}
		if got := s.read(again, "counter", 0, true); got != want+"end\n" {
			t.Errorf("restored: %q, want %q", got, want)
		}
		if now, err := again.Process(t.Context(), "counter"); err != nil || now.PID != p.PID {
			t.Errorf("process %+v, %v; was %d", now, err, p.PID)
		}
		if now := s.sh(generation, "boot2", "cat /proc/sys/kernel/random/boot_id"); now == boot || len(now) != len(boot) {
			t.Errorf("boot ID %q, the source's %q", now, boot)
		}
		if _, err := s.guest(1).Process(t.Context(), "counter"); sandbox.KindOf(err) != sandbox.Conflict {
			t.Errorf("an old generation: %v", err)
		}
		if _, err := s.Delete(t.Context(), s.req.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSaveRefused: what is refused leaves the sandbox as it was.
func TestSaveRefused(t *testing.T) {
	s := newSaver(t, "")
	s.create("", 5)
	h := s.req.Hello
	h.Generation = 6
	empty := t.TempDir()
	os.Chmod(empty, 0o700)
	full := t.TempDir()
	os.Chmod(full, 0o700)
	os.WriteFile(filepath.Join(full, "state"), nil, 0o600)
	old := h
	old.Generation = 5
	for name, c := range map[string]struct {
		req  wire.Checkpoint
		kind sandbox.Kind
		next uint64 // its generation afterwards
	}{
		"no directory":   {wire.Checkpoint{Dir: filepath.Join(empty, "none"), Hello: h}, sandbox.NotFound, 5},
		"old generation": {wire.Checkpoint{Dir: empty, Hello: old}, sandbox.Invalid, 5},
		"not empty":      {wire.Checkpoint{Dir: full, Hello: h}, sandbox.Internal, 6},
	} {
		t.Run(name, func(t *testing.T) {
			if c.next == 6 {
				defer func() { h.Generation++ }()
			}
			if _, err := s.Checkpoint(t.Context(), s.req.ID, c.req); sandbox.KindOf(err) != c.kind {
				t.Errorf("%+v", sandbox.AsError(err))
			}
		})
	}
	if got := s.sh(6, "alive", "echo alive"); got != "alive\n" {
		t.Errorf("%q", got)
	}
}

// TestSaveCrashPoints kills a keeper as it saves a sandbox.
func TestSaveCrashPoints(t *testing.T) {
	for _, point := range keeper.CheckpointCrashPoints() {
		t.Run(string(point), func(t *testing.T) {
			mounts := hostMounts(t)
			s := newSaver(t, point)
			s.create("", 1)
			dir := t.TempDir()
			os.Chmod(dir, 0o700)
			h := s.req.Hello
			h.Generation = 2
			if _, err := s.Checkpoint(t.Context(), s.req.ID, wire.Checkpoint{Dir: dir, Hello: h}); sandbox.KindOf(err) != sandbox.Unavailable {
				t.Errorf("%+v", sandbox.AsError(err))
			}
			<-s.done
			if err := launch.ReapStale(t.Context(), s.opts); err != nil {
				t.Errorf("reap: %+v", sandbox.AsError(err))
			}
			nothingLeft(t, s.req, mounts)
		})
	}
}
