package gvisor

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// resume starts another sandbox from an image.
func resume(t testing.TB, d *Driver, req *driver.CreateRequest, dir string) *box {
	t.Helper()
	traced(t, req)
	i, err := d.Create(t.Context(), req)
	if err != nil {
		t.Fatal("create:", err)
	}
	t.Cleanup(func() {
		if err := i.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error("destroy:", err)
		}
	})
	if err := i.(driver.Restorer).Restore(t.Context(), dir); err != nil {
		t.Fatal("restore:", err)
	}
	return &box{t: t, i: i, down: bufio.NewReader(i.Channels().Down)}
}

func (b *box) checkpoint(leaveRunning bool) string {
	b.t.Helper()
	dir := b.t.TempDir()
	if err := b.i.(driver.Checkpointer).Checkpoint(b.t.Context(), dir, leaveRunning); err != nil {
		b.t.Fatal(err)
	}
	return dir
}

func TestCheckpoint(t *testing.T) { inModes(t, testCheckpoint) }

func testCheckpoint(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	b := start(t, d, req)
	const setUp = `
mkdir /tmp/cg && mount -t cgroup2 none /tmp/cg && mkdir /tmp/cg/a && echo $$ >/tmp/cg/a/cgroup.procs
echo memory >/dev/shm/a; echo disk >/var/tmp/b; echo root >/usr/bin/new
setsid sleep 1000 </dev/null >/dev/null 2>&1 &
echo $! >/tmp/pid; hostname`
	if r := b.run("/bin/sh", "-c", setUp); strings.TrimSpace(r.Out) != "box" {
		t.Fatalf("%+v", r)
	}
	const look = `cat /dev/shm/a /var/tmp/b /usr/bin/new; kill -0 $(cat /tmp/pid) && echo alive
[ "$(cat /tmp/cg/a/cgroup.procs)" = "$(cat /tmp/pid)" ] && echo in its cgroup; hostname`
	const state = "memory\ndisk\nroot\nalive\nin its cgroup\n"
	dir := b.checkpoint(true)
	if r := b.run("/bin/sh", "-c", look); strings.TrimSpace(r.Out) != state+"box" {
		t.Errorf("the source afterwards: %+v", r)
	}
	for range 2 {
		again := request(t)
		again.Root, again.Hostname = req.Root, "twin"
		twin := resume(t, d, again, dir)
		for range 3 {
			if r := twin.run("/bin/sh", "-c", look); strings.TrimSpace(r.Out) != state+"twin" {
				t.Errorf("the twin: %+v", r)
			}
		}
		// A restored sandbox can be saved and restored again.
		third := request(t)
		third.Root = req.Root
		if r := resume(t, d, third, twin.checkpoint(false)).run("/bin/sh", "-c", look); strings.TrimSpace(r.Out) != state+"box" {
			t.Errorf("the twin's twin: %+v", r)
		}
	}
}

// TestCheckpointRefused: what cannot be saved or restored.
func TestCheckpointRefused(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	i, err := d.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Destroy(context.WithoutCancel(t.Context()))
	save := func(dir string) error { return i.(driver.Checkpointer).Checkpoint(t.Context(), dir, true) }
	if err := save(t.TempDir()); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("before it started: %v", err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := save(filepath.Join(t.TempDir(), "none")); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("without a directory: %v", err)
	}
	full := t.TempDir()
	os.WriteFile(filepath.Join(full, imageFiles[0]), nil, 0o600)
	if err := save(full); err == nil {
		t.Error("an image was written over another")
	}
	restore := func(dir string) error {
		r, err := d.Create(t.Context(), request(t))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Destroy(context.WithoutCancel(t.Context()))
		return r.(driver.Restorer).Restore(t.Context(), dir)
	}
	if err := restore(t.TempDir()); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("of nothing: %v", err)
	}
	bad := t.TempDir()
	for _, name := range imageFiles {
		os.WriteFile(filepath.Join(bad, name), []byte("this is no image"), 0o600)
	}
	if err := (&hostState{Version: hostVersion, GVisor: testGVisor, CPU: thisProcessor()}).write(bad); err != nil {
		t.Fatal(err)
	}
	if err := restore(bad); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("of garbage: %v", err)
	}
	if err := i.(driver.Restorer).Restore(t.Context(), bad); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("of what runs: %v", err)
	}
}
