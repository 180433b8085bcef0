package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// saved is an image of a sandbox that has files of its root open.
type saved struct {
	d    *Driver
	root driver.Root
	dir  string
}

// dataRoot is hostRoot with files that tests may change.
func dataRoot(t testing.TB) driver.Root {
	r := hostRoot(t)
	for _, d := range []string{"opt/sub"} {
		if err := os.MkdirAll(filepath.Join(r.Path, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"data": "one\n", "sub/deep": "two\n", "unused": "three\n", "name with\nnewline \xff (deleted)": "four\n"} {
		if err := os.WriteFile(filepath.Join(r.Path, "opt", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("data", filepath.Join(r.Path, "opt/own-link")); err != nil {
		t.Fatal(err)
	}
	return r
}

// openInside has a process inside keep the given files open.
func openInside(b *box, files ...string) {
	b.t.Helper()
	script := ""
	for _, f := range files { // in octal digits: requests are text
		script += "f=$(printf '"
		for _, c := range []byte(f) {
			script += fmt.Sprintf("\\%03o", c)
		}
		script += "'); exec 7<\"$f\"; setsid sleep 1000 </dev/null >/dev/null 2>&1 &\n"
	}
	if r := b.run("/bin/sh", "-c", script); r.Code != 0 {
		b.t.Fatalf("%+v", r)
	}
}

func save(t *testing.T, leaveRunning bool) (*saved, *box) {
	t.Helper()
	s := &saved{d: newDriver(t), root: dataRoot(t)}
	req := request(t)
	req.Root = s.root
	b := start(t, s.d, req)
	openInside(b, "/opt/data", "/opt/sub/deep", "/opt/own-link", "/opt/name with\nnewline \xff (deleted)")
	s.dir = b.checkpoint(leaveRunning)
	return s, b
}

// restore tries to restore the image.
func (s *saved) restore(t *testing.T) error {
	t.Helper()
	req := request(t)
	req.Root = s.root
	i, err := s.d.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Destroy(context.WithoutCancel(t.Context()))
	return i.(driver.Restorer).Restore(t.Context(), s.dir)
}

// TestHeld: the image names what the sandbox has open, and nothing else.
func TestHeld(t *testing.T) { inModes(t, testHeld) }

func testHeld(t *testing.T) {
	s, b := save(t, true)
	if r := b.run("/bin/cat", "/opt/data"); r.Out != "one\n" {
		t.Errorf("the source afterwards: %+v", r)
	}
	host, err := readHost(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range host.Files {
		names = append(names, f.path())
	}
	sleep, err := filepath.EvalSymlinks("/usr/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/", "/opt", "/opt/data", "/opt/sub/deep", "/opt/name with\nnewline \xff (deleted)", sleep} {
		if !slices.Contains(names, want) {
			t.Errorf("%q is not among %q", want, names)
		}
	}
	if slices.Contains(names, "/opt/unused") || slices.Contains(names, "/belljar-guest") {
		t.Errorf("too many: %q", names)
	}
	if host.GVisor == "" || !strings.HasPrefix(host.GVisor, "v0.0.0-") {
		t.Errorf("gVisor %q", host.GVisor)
	}
	if len(host.CPU.Features) == 0 || host.CPU.Arch == "" {
		t.Errorf("%+v", host.CPU)
	}
	if err := s.restore(t); err != nil {
		t.Error(err)
	}
}

// TestHeldChanged: what the memory refers to must be what it was.
func TestHeldChanged(t *testing.T) {
	if testing.Short() {
		t.Skip("probe: -short was asked for")
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, opt string)
		file   string // that the refusal names; "": none
		says   string
	}{
		{"nothing", func(*testing.T, string) {}, "", ""},
		{"another file", func(t *testing.T, opt string) { must(t, os.WriteFile(opt+"/unused", []byte("new"), 0o644)) }, "", ""},
		{"a new file", func(t *testing.T, opt string) { must(t, os.WriteFile(opt+"/sub/new", nil, 0o644)) }, "", ""},
		{"replaced", func(t *testing.T, opt string) {
			must(t, os.WriteFile(opt+"/new", []byte("ONE\n"), 0o644))
			must(t, os.Rename(opt+"/new", opt+"/data"))
		}, "/opt/data", "replaced"},
		{"replaced by a copy", func(t *testing.T, opt string) {
			var st unix.Stat_t
			must(t, unix.Stat(opt+"/data", &st))
			must(t, os.WriteFile(opt+"/new", []byte("one\n"), 0o644))
			must(t, os.Chtimes(opt+"/new", time.Unix(st.Atim.Unix()), time.Unix(st.Mtim.Unix())))
			must(t, os.Rename(opt+"/new", opt+"/data"))
		}, "/opt/data", "replaced"},
		{"removed", func(t *testing.T, opt string) { must(t, os.Remove(opt+"/data")) }, "/opt/data", "gone"},
		{"touched", func(t *testing.T, opt string) { must(t, os.Chtimes(opt+"/data", time.Now(), time.Unix(1, 0))) }, "/opt/data", "written to"},
		{"longer", func(t *testing.T, opt string) { must(t, os.WriteFile(opt+"/data", []byte("longer\n"), 0o644)) }, "/opt/data", "size"},
		{"written in place, times put back", func(t *testing.T, opt string) {
			var st unix.Stat_t
			must(t, unix.Stat(opt+"/data", &st))
			must(t, os.WriteFile(opt+"/data", []byte("ONE\n"), 0o644))
			must(t, os.Chtimes(opt+"/data", time.Unix(st.Atim.Unix()), time.Unix(st.Mtim.Unix())))
		}, "/opt/data", "changed"},
		{"the directory moved", func(t *testing.T, opt string) { must(t, os.Rename(opt+"/sub", opt+"/bus")) }, "/opt/sub", "gone"},
		{"a link in a directory's place", func(t *testing.T, opt string) {
			must(t, os.Rename(opt+"/sub", opt+"/bus"))
			must(t, os.Symlink("bus", opt+"/sub"))
		}, "/opt/sub", "another type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := save(t, false)
			tt.change(t, filepath.Join(s.root.Path, "opt"))
			err := s.restore(t)
			if tt.file == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e := sandbox.AsError(err)
			if sandbox.KindOf(err) != sandbox.Conflict || e.Field != "file" || e.Value != tt.file || !strings.Contains(e.Message, tt.says) || e.Hint == "" {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// TestHeldLost: what has gone while it was open cannot be saved, and the
// sandbox goes on.
func TestHeldLost(t *testing.T) {
	s, b := save(t, true)
	data := filepath.Join(s.root.Path, "opt/data")
	if err := os.Rename(data, data+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data, []byte("new\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, leaveRunning := range []bool{true, false} {
		err := b.i.(driver.Checkpointer).Checkpoint(t.Context(), t.TempDir(), leaveRunning)
		if e := sandbox.AsError(err); sandbox.KindOf(err) != sandbox.Conflict || e.Field != "file" {
			t.Errorf("%v", err)
		}
		if r := b.run("/bin/echo", "alive"); r.Out != "alive\n" {
			t.Errorf("%+v", r)
		}
	}
}

// TestHeldDirectoryLost: a directory that was moved while it was open shows when
// the sentry looks for its own name of it.
func TestHeldDirectoryLost(t *testing.T) {
	s, b := save(t, true)
	sub := filepath.Join(s.root.Path, "opt/sub")
	if err := os.Rename(sub, sub+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "deep"), []byte("new\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.dir = b.checkpoint(true)
	err := s.restore(t)
	if e := sandbox.AsError(err); sandbox.KindOf(err) != sandbox.Conflict || !strings.HasPrefix(e.Value, "/opt/sub.old") {
		t.Errorf("got %v", err)
	}
}

// TestHeldElsewhere: another copy of the same template has the same files.
func TestHeldElsewhere(t *testing.T) {
	s := &saved{d: newDriver(t), root: dataRoot(t)}
	s.root.Digest = "sha256:1"
	req := request(t)
	req.Root = s.root
	b := start(t, s.d, req)
	openInside(b, "/opt/data")
	s.dir = b.checkpoint(false)
	s.root.Path = dataRoot(t).Path
	if err := s.restore(t); err != nil {
		t.Error(err)
	}
	s.root.Digest = "sha256:2"
	if err := s.restore(t); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("of another template: %v", err)
	}
	s.root.Digest = "sha256:1"
	if err := os.WriteFile(filepath.Join(s.root.Path, "opt/data"), []byte("longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.restore(t); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("with a file that is longer: %v", err)
	}
}

// BenchmarkHeld is the cost of the look at the files of an image, at a pause and
// at a resume.
func BenchmarkHeld(b *testing.B) {
	tree, err := os.Open("/usr/bin")
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	names, err := tree.Readdirnames(400)
	if err != nil {
		b.Fatal(err)
	}
	var open []*os.File
	for _, n := range names {
		if fd, err := unix.Openat(int(tree.Fd()), n, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
			open = append(open, os.NewFile(uintptr(fd), n))
		}
	}
	defer closeAll(open)
	root, err := os.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	var files map[string]*heldFile
	b.Run("pause", func(b *testing.B) {
		for b.Loop() {
			if files, err = held(os.Getpid(), root, time.Now().UnixNano()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(files)), "ns/file")
	})
	maps.DeleteFunc(files, func(path string, _ *heldFile) bool { return !strings.HasPrefix(path, "/usr/") }) // ours change
	b.Run("resume", func(b *testing.B) {
		for b.Loop() {
			want := map[inode]string{}
			for path, f := range files {
				n, err := f.unchanged(root, false)
				if err != nil {
					b.Fatal(err)
				}
				want[n] = path
			}
			if err := holds(os.Getpid(), want); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(files)), "ns/file")
	})
	b.Run("processor", func(b *testing.B) {
		for b.Loop() {
			thisProcessor()
		}
	})
}

// TestHostRefused: another gVisor, another processor, or no word of either.
func TestHostRefused(t *testing.T) {
	s, _ := save(t, false)
	good, err := os.ReadFile(filepath.Join(s.dir, hostName))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		edit func(h *hostState)
		kind sandbox.Kind
		says []string
	}{
		{"another gVisor", func(h *hostState) { h.GVisor = "v0.0.0-2020" }, sandbox.Conflict, []string{"v0.0.0-2020", testGVisor}},
		{"no gVisor", func(h *hostState) { h.GVisor = "" }, sandbox.Conflict, []string{testGVisor}},
		{"another architecture", func(h *hostState) { h.CPU.Arch = "vax" }, sandbox.Conflict, nil},
		{"a feature", func(h *hostState) { h.CPU.Features = append(h.CPU.Features, "zzz-nonesuch") }, sandbox.Conflict, []string{"lacks"}},
		{"cache lines", func(h *hostState) { h.CPU.CacheLine++ }, sandbox.Conflict, nil},
		{"fewer features", func(h *hostState) { h.CPU.Features = h.CPU.Features[1:] }, "", nil},
		{"another form", func(h *hostState) { h.Version++ }, sandbox.Internal, nil},
		{"a path upwards", func(h *hostState) { h.Files[0].Path = "/../../etc/passwd" }, sandbox.Conflict, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h hostState
			if err := json.Unmarshal(good, &h); err != nil {
				t.Fatal(err)
			}
			tt.edit(&h)
			os.Remove(filepath.Join(s.dir, hostName))
			if err := h.write(s.dir); err != nil {
				t.Fatal(err)
			}
			err := s.restore(t)
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
		})
	}
	os.Remove(filepath.Join(s.dir, hostName))
	if err := s.restore(t); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("without: %v", err)
	}
}
