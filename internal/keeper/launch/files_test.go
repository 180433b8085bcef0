package launch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/filetree"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/launch"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func (s *saver) saveFiles(keep bool, generation uint64) string {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	h := s.req.Hello
	h.Generation = generation
	got, err := s.Checkpoint(s.t.Context(), s.req.ID, wire.Checkpoint{Dir: dir, Keep: keep, FilesOnly: true, Hello: h})
	if err != nil {
		s.t.Fatalf("checkpoint of files: %+v", sandbox.AsError(err))
	}
	if len(got.Files) != 4 || keep && (got.Generation != generation || got.Stopped <= 0) {
		s.t.Errorf("%+v", got)
	}
	return dir
}

// TestSaveFiles: files come back to a sandbox that boots anew, and nothing that
// the guest has noted of the one before.
func TestSaveFiles(t *testing.T) {
	s := newSaver(t, "")
	s.create("", 1)
	boot := s.sh(1, "one", "mkdir /data; echo kept >/data/file; rm /etc/passwd; echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd; echo planted >/run/belljar/planted; rm -rf /tmp/* /tmp/.X11-unix; cat /proc/sys/kernel/random/boot_id")
	s.sh(1, "two", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
	first := s.saveFiles(true, 2)
	if got := s.sh(2, "three", "pgrep sleep >/dev/null && cat /data/file; echo later >/data/file"); got != "kept\n" {
		t.Errorf("the source afterwards: %q", got)
	}
	second := s.saveFiles(false, 3)
	if _, err := s.Status(t.Context(), s.req.ID); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("after its end: %v", err)
	}
	for dir, want := range map[string]string{first: "kept\n", second: "later\n"} {
		req := *s.req
		req.Files, req.Hello.Generation = dir, 7
		made, err := s.Create(t.Context(), &req)
		if err != nil {
			t.Fatalf("create: %+v", sandbox.AsError(err))
		}
		const look = "cat /data/file; pgrep sleep; ls /run/belljar/planted 2>/dev/null; cat /run/belljar/generation; stat -f -c %T /tmp"
		if got := s.sh(7, "look", look); got != want+"7\noverlayfs\n" {
			t.Errorf("%q", got)
		}
		if made.Reply.BootID == "" || strings.Contains(boot, made.Reply.BootID) {
			t.Errorf("boot %q, and before %q", made.Reply.BootID, boot)
		}
		if _, err := s.Delete(t.Context(), s.req.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestChanges: the keeper passes a list on without a look at it.
func TestChanges(t *testing.T) {
	s := newSaver(t, "")
	if _, err := s.Changes(t.Context(), s.req.ID); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("of none: %v", err)
	}
	s.create("", 1)
	s.sh(1, "one", "mkdir /data; echo 12345 >/data/file; rm /usr/bin/tee")
	for range 2 {
		list, err := s.Changes(t.Context(), s.req.ID)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]filetree.Entry{}
		for e, err := range filetree.Entries(list) {
			if err != nil {
				t.Fatal(err)
			}
			seen[e.Path] = e
		}
		list.Close()
		if f := seen["/data/file"]; f.Type != filetree.File || f.Size != 6 || f.Mode != 0o644 {
			t.Errorf("%+v", f)
		}
		if g := seen["/usr/bin/tee"]; g.Type != filetree.Gone {
			t.Errorf("%+v", g)
		}
	}
}

// TestSaveFilesRefused: what cannot be is refused before anything is done.
func TestSaveFilesRefused(t *testing.T) {
	s := newSaver(t, "")
	empty := t.TempDir()
	os.Chmod(empty, 0o700)
	for name, req := range map[string]func(r *wire.Create){
		"no directory": func(r *wire.Create) { r.Files = filepath.Join(empty, "none") },
		"no image":     func(r *wire.Create) { r.Files = empty },
		"parked":       func(r *wire.Create) { r.Files, r.Park = empty, wire.Booted },
	} {
		r := *s.req
		r.Hello.Generation = 1
		req(&r)
		if _, err := s.Create(t.Context(), &r); sandbox.KindOf(err) != sandbox.NotFound && sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%s: %+v", name, sandbox.AsError(err))
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestSaveFilesCrashPoints kills a keeper as it saves files.
func TestSaveFilesCrashPoints(t *testing.T) {
	for _, point := range keeper.CheckpointCrashPoints() {
		t.Run(string(point), func(t *testing.T) {
			mounts := hostMounts(t)
			s := newSaver(t, point)
			s.create("", 1)
			dir := t.TempDir()
			os.Chmod(dir, 0o700)
			h := s.req.Hello
			h.Generation = 2
			if _, err := s.Checkpoint(t.Context(), s.req.ID, wire.Checkpoint{Dir: dir, FilesOnly: true, Hello: h}); sandbox.KindOf(err) != sandbox.Unavailable {
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
