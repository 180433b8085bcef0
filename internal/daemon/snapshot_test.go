package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// stored lists what is on disk of snapshots and forks.
func (in *installation) stored() (names []string) {
	in.t.Helper()
	for _, dir := range []string{in.dirs.Snapshots(), in.dirs.Forks()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			in.t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// refused checks the kind of an error, that it names what was wrong, and that it
// says what to do.
func refused(t testing.TB, what string, err error, kind sandbox.Kind, value string) {
	t.Helper()
	if e := sandbox.AsError(err); e == nil || e.Kind != kind || !strings.Contains(e.Value, value) {
		t.Errorf("%s: got %+v, want %s about %q", what, e, kind, value)
	}
}

// nextDaemon kills the daemon with -9 and has the next one started.
func (in *installation) nextDaemon(c *client.Client) {
	in.t.Helper()
	in.killDaemon()
	if _, err := c.Info(in.t.Context()); err != nil {
		if _, err := c.Info(in.t.Context()); err != nil {
			in.t.Fatal(err)
		}
	}
}

func TestSnapshot(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Env: map[string]string{"A": "b"}, Timeout: time.Hour})
	ref := string(sb.ID)
	s, err := c.Snapshot(t.Context(), ref, "deps")
	if err != nil || !slices.Equal(s.Names, []string{"deps:latest"}) || s.Kind != sandbox.KindMemory || s.Sandbox != sb.ID || s.Stopped <= 0 || s.SizeBytes <= 0 {
		t.Fatalf("got %+v, %v", s, err)
	}
	now, err := c.Get(t.Context(), ref)
	if err != nil || now.State != sandbox.Running || now.Generation != 2 || now.EndsAt.IsZero() {
		t.Errorf("the source: got %+v, %v, want it running, with its timeout", now, err)
	}
	runs(t, c, ref)
	if _, err := c.Kill(t.Context(), ref); err != nil {
		t.Fatal(err)
	}

	in.nextDaemon(c) // it outlives source and daemon
	list, err := c.Snapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != s.ID || list[0].Problem != "" || !slices.Equal(list[0].Names, s.Names) {
		t.Fatalf("got %+v, %v", list, err)
	}
	for _, by := range []string{"deps", "deps:latest", string(s.ID)} {
		made := create(t, c, sandbox.Spec{Snapshot: by, Env: map[string]string{"C": "d"}})
		if made.Snapshot != s.ID || made.ID == sb.ID || made.Generation != 2 || made.User != "root" || made.Hostname == sb.Hostname || made.Template != "host" {
			t.Errorf("by %s: got %+v", by, made)
		}
		out := output(t, c, string(made.ID), "/usr/bin/env")
		if !strings.Contains(out, "A=b\n") || !strings.Contains(out, "C=d\n") {
			t.Errorf("by %s: the environment is %q", by, out)
		}
	}
	if _, err := c.TagSnapshot(t.Context(), "deps", "other:v1", false); err != nil {
		t.Error(err)
	}
	if err := c.RemoveSnapshot(t.Context(), "other:v1"); err != nil {
		t.Error(err)
	}
	_, err = c.GetSnapshot(t.Context(), "deps")
	refused(t, "one that was removed", err, sandbox.NotFound, "deps")
	if left := in.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// output runs a command and returns what it prints.
func output(t testing.TB, c *client.Client, ref string, argv ...string) string {
	t.Helper()
	var b bytes.Buffer
	if exit, err := c.Exec(t.Context(), ref, client.ExecOptions{Streams: client.Streams{Stdout: &b}, Argv: argv}); err != nil || exit.Code != 0 {
		t.Errorf("exec: got %+v, %v", exit, err)
	}
	return b.String()
}

func TestSnapshotNames(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	a, err := c.Snapshot(t.Context(), ref, "a:v1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Snapshot(t.Context(), ref, "")
	if err != nil || len(b.Names) != 0 {
		t.Fatalf("got %+v, %v", b, err)
	}
	for _, bad := range []string{"a/b", "../x", strings.Repeat("n", 1000), "a:b:c", ":v", "a:", "-x", "a b"} {
		_, err := c.Snapshot(t.Context(), ref, bad)
		refused(t, bad, err, sandbox.Invalid, bad[:min(len(bad), 200)])
		if bad == "../x" {
			continue // no route has such a path
		}
		_, err = c.TagSnapshot(t.Context(), string(b.ID), bad, false)
		refused(t, bad, err, sandbox.Invalid, bad[:min(len(bad), 200)])
	}
	_, err = c.Snapshot(t.Context(), ref, "a:v1")
	refused(t, "a name that is taken", err, sandbox.AlreadyExists, "a:v1")
	_, err = c.TagSnapshot(t.Context(), string(b.ID), "a:v1", false)
	refused(t, "a name that is taken", err, sandbox.AlreadyExists, "a:v1")
	if got, err := c.TagSnapshot(t.Context(), string(b.ID), "a:v1", true); err != nil || !slices.Equal(got.Names, []string{"a:v1"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = c.UntagSnapshot(t.Context(), string(a.ID), "a:v1")
	refused(t, "another's name", err, sandbox.NotFound, "a:v1")
	in.nextDaemon(c)
	if got, err := c.GetSnapshot(t.Context(), "a:v1"); err != nil || got.ID != b.ID {
		t.Errorf("after a restart: got %+v, %v, want the one that it was moved to", got, err)
	}
	if got, err := c.UntagSnapshot(t.Context(), "a:v1", "a:v1"); err != nil || len(got.Names) != 0 || got.ID != b.ID {
		t.Errorf("got %+v, %v", got, err)
	}
	if left := in.stored(); len(left) != 2 {
		t.Errorf("stored: %v, want two", left)
	}
}

func TestSnapshotRefused(t *testing.T) {
	in := install(t)
	c := in.dial()
	_, err := c.Snapshot(t.Context(), "nobody", "x")
	refused(t, "no such sandbox", err, sandbox.NotFound, "nobody")
	_, _, err = c.Fork(t.Context(), "nobody", 1, "")
	refused(t, "no such sandbox", err, sandbox.NotFound, "nobody")
	_, err = c.Create(t.Context(), sandbox.Spec{Snapshot: "nothing"}, nil)
	refused(t, "no such snapshot", err, sandbox.NotFound, "nothing")
	_, err = c.Create(t.Context(), sandbox.Spec{Snapshot: "a/b"}, nil)
	refused(t, "no name", err, sandbox.Invalid, "a/b")

	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/", Name: "source"}).ID)
	if _, err := c.Snapshot(t.Context(), ref, "s"); err != nil {
		t.Fatal(err)
	}
	for field, spec := range map[string]sandbox.Spec{
		"template": {Template: imported}, "memory": {Limits: sandbox.Limits{MemoryBytes: 1 << 28}},
		"cpus": {Limits: sandbox.Limits{CPUs: 0.5}}, "disk": {Limits: sandbox.Limits{DiskBytes: 1 << 28}},
	} {
		spec.Snapshot = "s"
		if _, err := c.Create(t.Context(), spec, nil); sandbox.KindOf(err) != sandbox.Invalid || sandbox.AsError(err).Field != field {
			t.Errorf("another %s: got %v, want invalid", field, err)
		}
	}
	for _, n := range []int{0, -1, manager.MaxForks + 1} {
		_, _, err = c.Fork(t.Context(), ref, n, "")
		if n == 0 { // left out
			if err != nil {
				t.Error(err)
			}
			continue
		}
		refused(t, "so many copies", err, sandbox.Invalid, fmt.Sprint(n))
	}
	_, _, err = c.Fork(t.Context(), ref, 1, "source")
	refused(t, "a name that is taken", err, sandbox.AlreadyExists, "source")
	if _, err := c.Kill(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	_, err = c.Snapshot(t.Context(), ref, "dead")
	refused(t, "a dead sandbox", err, sandbox.Conflict, "")
	if left := in.stored(); len(left) != 1 {
		t.Errorf("stored: %v, want the one snapshot", left)
	}
}

// What cannot be saved goes on, and nothing is left of the snapshot.
func TestSnapshotFails(t *testing.T) {
	t.Setenv(envFail, "checkpoint:2")
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	if _, err := c.Snapshot(t.Context(), ref, "x"); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("got %v, want the driver's error", err)
	}
	if _, _, err := c.Fork(t.Context(), ref, 2, ""); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("got %v, want the driver's error", err)
	}
	runs(t, c, ref)
	if left := in.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := c.Snapshot(t.Context(), ref, "x"); err != nil { // the name is free
		t.Error(err)
	}
}

func TestFork(t *testing.T) {
	in := install(t)
	c := in.dial()
	source := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Hour, Labels: map[string]string{"a": "b"}})
	copies := max(4, 2*runtime.NumCPU()) + 2 // more than may be on their way at a time
	for _, state := range []string{"running", "paused"} {
		if state == "paused" {
			pauseIt(t, c, string(source.ID))
		}
		made, stopped, err := c.Fork(t.Context(), string(source.ID), copies, state)
		if err != nil || len(made) != copies || (stopped > 0) != (state == "running") {
			t.Fatalf("%s: got %d copies, stopped %v, %v", state, len(made), stopped, err)
		}
		names, ids, hosts := map[string]bool{}, map[sandbox.ID]bool{}, map[string]bool{}
		for _, sb := range made {
			names[sb.Name], ids[sb.ID], hosts[sb.Hostname] = true, true, true
			if sb.ForkOf != source.ID || sb.State != sandbox.Running || sb.EndsAt.IsZero() || sb.Labels["a"] != "b" {
				t.Errorf("%s: got %+v", state, sb)
			}
			runs(t, c, string(sb.ID))
		}
		if len(names) != copies || !names[state+"-2"] || len(ids) != copies || len(hosts) != copies {
			t.Errorf("%s: names %v, hosts %v", state, names, hosts)
		}
		if sb, err := c.Get(t.Context(), string(source.ID)); err != nil || string(sb.State) != state {
			t.Errorf("the source is %s, %v, want it %s", sb.State, err, state)
		}
	}
	if left := in.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// When one copy cannot be made none is left.
func TestForkFails(t *testing.T) {
	t.Setenv(envFail, "restore:1")
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	if _, _, err := c.Fork(t.Context(), ref, 4, ""); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("got %v, want the driver's error", err)
	}
	list, err := c.List(t.Context(), false)
	if err != nil || len(list) != 1 || len(in.stored()) > 0 {
		t.Errorf("got %d sandboxes, %v, left %v, want the source alone", len(list), err, in.stored())
	}
	runs(t, c, ref)
}

// Snapshots, forks, pauses and removals of one sandbox at the same time get an
// answer each.
func TestSnapshotStorm(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	var wg sync.WaitGroup
	for who := range 8 {
		wg.Go(func() {
			for range 3 {
				var err error
				switch who % 4 {
				case 0:
					var s sandbox.Snapshot
					if s, err = c.Snapshot(t.Context(), ref, ""); err == nil {
						err = c.RemoveSnapshot(t.Context(), string(s.ID))
					}
				case 1:
					_, err = c.Pause(t.Context(), ref)
				case 2:
					var made []sandbox.Sandbox
					if made, _, err = c.Fork(t.Context(), ref, 1, ""); err == nil {
						_, err = c.Kill(t.Context(), string(made[0].ID))
					}
				default:
					_, err = c.Processes(t.Context(), ref)
				}
				if err != nil {
					t.Errorf("%d: %v", who, err)
				}
			}
		})
	}
	wg.Wait()
	runs(t, c, ref)
	if left := in.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// An archive goes to another state directory of the same key and to no other.
func TestSnapshotArchive(t *testing.T) {
	in := install(t)
	c := in.dial()
	host := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	if _, err := c.Snapshot(t.Context(), host, "host"); err != nil {
		t.Fatal(err)
	}
	_, err := c.SaveSnapshot(t.Context(), "host")
	refused(t, "memory that knows the host's files", err, sandbox.Unsupported, "host")

	ref := string(create(t, c, sandbox.Spec{Template: imported, User: "root", Workdir: "/"}).ID)
	s, err := c.Snapshot(t.Context(), ref, "a:v1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := c.SaveSnapshot(t.Context(), "a:v1")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(body)
	if err != nil || body.Close() != nil {
		t.Fatal(err)
	}
	_, err = c.LoadSnapshot(t.Context(), bytes.NewReader(archive), "b")
	refused(t, "one that is here", err, sandbox.AlreadyExists, string(s.ID))

	key, err := os.ReadFile(in.dirs.Key())
	if err != nil {
		t.Fatal(err)
	}
	other := install(t)
	oc := other.dial()
	_, err = oc.LoadSnapshot(t.Context(), bytes.NewReader(archive), "b")
	refused(t, "another installation's memory", err, sandbox.Denied, string(s.ID))
	if left := other.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	other.killDaemon()
	if err := os.WriteFile(other.dirs.Key(), key, 0o600); err != nil {
		t.Fatal(err)
	}
	oc.Info(t.Context()) // finds the broken connection
	for _, cut := range []int{0, 1, len(archive) / 2, len(archive) - 1} {
		_, err = oc.LoadSnapshot(t.Context(), bytes.NewReader(archive[:cut]), "b")
		refused(t, fmt.Sprintf("cut after %d bytes", cut), err, sandbox.Invalid, "")
	}
	if left := other.stored(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	got, err := oc.LoadSnapshot(t.Context(), bytes.NewReader(archive), "b")
	if err != nil || got.ID != s.ID || !slices.Equal(got.Names, []string{"b:latest"}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	made := create(t, oc, sandbox.Spec{Snapshot: "b"})
	runs(t, oc, string(made.ID))
	if _, err := oc.VerifySnapshot(t.Context(), "b"); err != nil {
		t.Error(err)
	}
}

// A snapshot of which one bit has changed is refused, and listed with the reason
// once the daemon has started anew.
func TestSnapshotDamaged(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	s, err := c.Snapshot(t.Context(), ref, "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state", "manifest.json", "names.json"} {
		path := filepath.Join(in.dirs.Snapshots(), string(s.ID), name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if name != "names.json" {
			_, err := c.Create(t.Context(), sandbox.Spec{Snapshot: "x"}, nil)
			refused(t, name, err, sandbox.Conflict, name)
		}
		in.nextDaemon(c)
		if got, err := c.GetSnapshot(t.Context(), string(s.ID)); name != "state" && (err != nil || got.Problem == "") {
			t.Errorf("%s: got %+v, %v, want it listed with its problem", name, got, err)
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		in.nextDaemon(c)
	}
	runs(t, c, string(create(t, c, sandbox.Spec{Snapshot: "x"}).ID))
}

// At every crash point of snapshots and forks nothing that was acknowledged is
// lost, nothing is left, and the source runs.
func TestSnapshotCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	for _, point := range manager.SnapshotCrashPoints() {
		t.Run(point, func(t *testing.T) {
			in := install(t)
			for range rounds {
				ref, kept := in.crashSaved(point)
				c := in.dial()
				within(t, 30*time.Second, "the source runs", func() bool {
					sb, err := c.Get(t.Context(), ref)
					return err == nil && sb.State == sandbox.Running
				})
				runs(t, c, ref)
				list, err := c.Snapshots(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range list {
					if s.Problem != "" {
						t.Errorf("a snapshot has the problem %q", s.Problem)
					}
					runs(t, c, string(create(t, c, sandbox.Spec{Snapshot: string(s.ID)}).ID))
				}
				if len(list) != kept || len(in.stored()) != kept {
					t.Fatalf("got %d snapshots and stored %v, want %d", len(list), in.stored(), kept)
				}
				if err := c.Stop(t.Context(), true); err != nil {
					t.Fatal(err)
				}
				for _, s := range list {
					if err := c.RemoveSnapshot(t.Context(), string(s.ID)); err != nil {
						t.Error(err)
					}
				}
				within(t, 20*time.Second, "nothing is left", func() bool { return len(in.leftovers())+len(in.images())+len(in.stored()) == 0 })
			}
		})
	}
}

// crashSaved has the daemon die at a point in the making, forking or removing of
// a snapshot, and tells the source and how many snapshots there must be now.
func (in *installation) crashSaved(point string) (ref string, kept int) {
	in.t.Helper()
	c := in.dial()
	ref = string(create(in.t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Hour}).ID)
	act := func(ctx context.Context, c *client.Client) error { _, err := c.Snapshot(ctx, ref, "x:y"); return err }
	switch point {
	case manager.CrashForkSaved:
		act = func(ctx context.Context, c *client.Client) error { _, _, err := c.Fork(ctx, ref, 2, ""); return err }
	case manager.CrashSnapshotRemoving:
		s, err := c.Snapshot(in.t.Context(), ref, "")
		if err != nil {
			in.t.Fatal(err)
		}
		act = func(ctx context.Context, c *client.Client) error { return c.RemoveSnapshot(ctx, string(s.ID)) }
		kept = 1 // not acknowledged
	case manager.CrashSnapshotPublished:
		kept = 1
	}
	if err := c.Stop(in.t.Context(), false); err != nil {
		in.t.Fatalf("stop: %v", err)
	}
	d := in.daemon("BELLJAR_CRASH=" + point)
	ctx, cancel := context.WithTimeout(in.t.Context(), 30*time.Second)
	defer cancel()
	var dc *client.Client
	within(in.t, 10*time.Second, "the daemon serves", func() (ok bool) {
		var err error
		dc, err = client.Dial(ctx, in.options(true))
		return err == nil
	})
	defer dc.Close()
	if err := act(ctx, dc); err == nil {
		in.t.Errorf("%s: the daemon lived through it", point)
		_ = d.Process.Kill()
	}
	if err := d.Wait(); !killed(err) {
		in.t.Errorf("%s: the daemon ended with %v, want it killed", point, err)
	}
	return ref, kept
}
