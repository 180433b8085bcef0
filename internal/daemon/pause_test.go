package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// The fake driver saves and restores a sandbox in all that its host can see;
// what a real one keeps of processes is tested with it, in test/e2e.

// images lists what is on disk of paused sandboxes.
func (in *installation) images() []string {
	in.t.Helper()
	entries, err := os.ReadDir(in.dirs.Images())
	if err != nil {
		in.t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// runs executes a command in a sandbox.
func runs(t testing.TB, c *client.Client, ref string) {
	t.Helper()
	if exit, err := c.Exec(t.Context(), ref, client.ExecOptions{Argv: []string{"/bin/true"}}); err != nil || exit.Code != 0 {
		t.Errorf("exec: got %+v, %v", exit, err)
	}
}

func pauseIt(t testing.TB, c *client.Client, ref string) sandbox.Sandbox {
	t.Helper()
	sb, err := c.Pause(t.Context(), ref)
	if err != nil || sb.State != sandbox.Paused {
		t.Fatalf("pause: got %v, %v, want it paused", sb.State, err)
	}
	return sb
}

func TestPause(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/", Env: map[string]string{"A": "b"}, Timeout: time.Hour}).ID)
	sb := pauseIt(t, c, ref)
	if sb.PausedAt.IsZero() || sb.ImageBytes <= 0 || sb.Generation != 1 || !sb.EndsAt.IsZero() {
		t.Errorf("paused: got %+v", sb)
	}
	if left := in.leftovers(); len(left) > 0 {
		t.Errorf("a paused sandbox holds %v", left)
	}
	info, err := os.Stat(filepath.Join(in.dirs.Images(), ref))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the image: got %v, %v, want mode 0700", info.Mode(), err)
	}
	if again := pauseIt(t, c, ref); !again.PausedAt.Equal(sb.PausedAt) {
		t.Error("a second pause has paused it again")
	}
	if _, err := c.Stats(t.Context(), ref); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("stats: got %v, want conflict", err)
	}

	in.killDaemon()
	if _, err := c.Info(t.Context()); err != nil { // starts the next
		c.Info(t.Context())
	}
	if sb, err := c.Get(t.Context(), ref); err != nil || sb.State != sandbox.Paused {
		t.Errorf("after a restart: got %v, %v, want it paused", sb.State, err)
	}
	var wg sync.WaitGroup
	for range 8 { // one resume for all
		wg.Go(func() {
			var out bytes.Buffer
			exit, err := c.Exec(t.Context(), ref, client.ExecOptions{
				Argv: []string{"/bin/sh", "-c", "echo $A"}, Streams: client.Streams{Stdout: &out},
			})
			if err != nil || exit.Code != 0 || out.String() != "b\n" {
				t.Errorf("exec: got %+v, %v, %q", exit, err, out.String())
			}
		})
	}
	wg.Wait()
	sb, err = c.Resume(t.Context(), ref) // it runs already
	if err != nil || sb.State != sandbox.Running || sb.Generation != 2 || !sb.PausedAt.IsZero() || sb.ImageBytes != 0 || sb.EndsAt.IsZero() {
		t.Errorf("resumed: got %+v, %v", sb, err)
	}
	if left := in.images(); len(left) > 0 {
		t.Errorf("images of a sandbox that runs: %v", left)
	}

	pauseIt(t, c, ref)
	dead, err := c.Kill(t.Context(), ref)
	if err != nil || dead.State != sandbox.Dead || len(in.images()) > 0 {
		t.Errorf("killed: got %v, %v, images %v", dead.State, err, in.images())
	}
	for name, act := range map[string]func(context.Context, string) (sandbox.Sandbox, error){"pause": c.Pause, "resume": c.Resume} {
		if _, err := act(t.Context(), ref); sandbox.KindOf(err) != sandbox.Conflict {
			t.Errorf("%s of the dead: got %v, want conflict", name, err)
		}
		if _, err := act(t.Context(), "nobody"); sandbox.KindOf(err) != sandbox.NotFound {
			t.Errorf("%s of nobody: got %v, want not_found", name, err)
		}
	}
}

// An attached stream waits with its sandbox and does not resume it.
func TestPauseUnderAStream(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, ref, client.ExecOptions{ID: "long", Argv: []string{"/bin/sleep", "600"}})
		ended <- err
	}()
	within(t, 10*time.Second, "the exec runs", func() bool {
		ps, err := c.Processes(t.Context(), ref)
		return err == nil && len(ps) == 1
	})
	pauseIt(t, c, ref)
	quiet := time.NewTimer(time.Second)
	defer quiet.Stop()
	select {
	case err := <-ended:
		t.Errorf("the exec ended with the pause: %v", err)
	case <-quiet.C:
	}
	if sb, err := c.Get(t.Context(), ref); err != nil || sb.State != sandbox.Paused {
		t.Errorf("got %v, %v, want it paused still", sb.State, err)
	}
	cancel()
	<-ended
}

func TestTimeoutsAndPauses(t *testing.T) {
	in := install(t)
	c := in.dial()
	kept := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: 2 * time.Second})
	pauseIt(t, c, string(kept.ID))
	put := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Second, OnTimeout: sandbox.OnTimeoutPause})
	is := func(id sandbox.ID, want sandbox.State) func() bool {
		return func() bool { sb, err := c.Get(t.Context(), string(id)); return err == nil && sb.State == want }
	}
	within(t, 20*time.Second, "paused by its timeout", is(put.ID, sandbox.Paused))
	sb, err := c.Resume(t.Context(), string(put.ID))
	if err != nil || time.Until(sb.EndsAt) < 500*time.Millisecond {
		t.Errorf("resumed: got an end in %v, %v, want the whole timeout again", time.Until(sb.EndsAt), err)
	}
	within(t, 20*time.Second, "paused by its timeout again", is(put.ID, sandbox.Paused))
	if !is(kept.ID, sandbox.Paused)() {
		t.Error("the timeout went on in a pause")
	}
	if sb, err := c.SetTimeout(t.Context(), string(put.ID), time.Hour); err != nil || !sb.EndsAt.IsZero() {
		t.Errorf("SetTimeout of a paused one: got %v, %v", sb.EndsAt, err)
	}
	if sb, err := c.Resume(t.Context(), string(put.ID)); err != nil || time.Until(sb.EndsAt) < 59*time.Minute {
		t.Errorf("resumed: got an end in %v, %v, want an hour", time.Until(sb.EndsAt), err)
	}
	if sb, err := c.Resume(t.Context(), string(kept.ID)); err != nil || time.Until(sb.EndsAt) > 2*time.Second {
		t.Errorf("resumed: got an end in %v, %v, want what was left", time.Until(sb.EndsAt), err)
	}
	if dead, err := c.Wait(t.Context(), string(kept.ID)); err != nil || dead.EndReason != sandbox.EndTimeout {
		t.Errorf("got %v, %v, want timeout", dead.EndReason, err)
	}
}

func TestPauseRefused(t *testing.T) {
	in := install(t)
	c := in.dial()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	spec := func(o sandbox.OnTimeout) sandbox.Spec {
		handles, err := c.SendFiles(t.Context(), []*os.File{dir})
		if err != nil {
			t.Fatal(err)
		}
		return sandbox.Spec{User: "root", Workdir: "/", OnTimeout: o, Mounts: []sandbox.Mount{{Handle: handles[0], Target: "/data"}}}
	}
	refused := func(err error) {
		t.Helper()
		if e := sandbox.AsError(err); e == nil || e.Kind != sandbox.Unsupported || e.Value != "/data" || e.Hint == "" {
			t.Errorf("got %+v, want unsupported, the mount's name and a hint", e)
		}
	}
	_, err = c.Create(t.Context(), spec(sandbox.OnTimeoutPause), nil)
	refused(err)
	mounted := create(t, c, spec(""))
	_, err = c.Pause(t.Context(), string(mounted.ID))
	refused(err)
	runs(t, c, string(mounted.ID))
	if _, err := c.Create(t.Context(), sandbox.Spec{OnTimeout: "forget"}, nil); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v, want invalid", err)
	}
}

// A sandbox that cannot be saved runs on, and does not outlive its timeout by it.
func TestPauseFails(t *testing.T) {
	t.Setenv(envFail, "checkpoint:0")
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Hour})
	ref := string(sb.ID)
	for n := range 2 {
		if _, err := c.Pause(t.Context(), ref); sandbox.KindOf(err) != sandbox.Internal || !strings.Contains(err.Error(), "told to fail") {
			t.Errorf("got %v, want the driver's error", err)
		}
		sb, err := c.Get(t.Context(), ref)
		if err != nil || sb.State != sandbox.Running || sb.Generation != uint64(n+2) || time.Until(sb.EndsAt) < 59*time.Minute {
			t.Errorf("got %s, generation %d, %v, want it running under the next", sb.State, sb.Generation, err)
		}
		runs(t, c, ref)
	}
	if left := in.images(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	short := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: 300 * time.Millisecond, OnTimeout: sandbox.OnTimeoutPause})
	if dead, err := c.Wait(t.Context(), string(short.ID)); err != nil || dead.EndReason != sandbox.EndTimeout {
		t.Errorf("got %v, %v, want timeout", dead.EndReason, err)
	}
}

// A sandbox that cannot be restored stays paused, and can be once it can.
func TestResumeFails(t *testing.T) {
	t.Setenv(envFail, "restore:2")
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	pauseIt(t, c, ref)
	for range 2 {
		if _, err := c.Resume(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "told to fail") {
			t.Errorf("got %v, want the driver's error", err)
		}
		if sb, err := c.Get(t.Context(), ref); err != nil || sb.State != sandbox.Paused || len(in.images()) != 1 {
			t.Errorf("got %s, %v, images %v, want it paused still", sb.State, err, in.images())
		}
		if left := in.leftovers(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	runs(t, c, ref)
}

// Many who pause, resume, use and kill at the same time get an answer each, and
// a sandbox is somewhere at the end.
func TestPauseStorm(t *testing.T) {
	in := install(t)
	c := in.dial()
	for range 3 {
		ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
		var wg sync.WaitGroup
		for who := range 6 {
			wg.Go(func() {
				for range 4 {
					var err error
					switch who % 3 {
					case 0:
						_, err = c.Pause(t.Context(), ref)
					case 1:
						_, err = c.Resume(t.Context(), ref)
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
		for range 2 {
			wg.Go(func() { c.Pause(t.Context(), ref) }) // whichever comes first
			wg.Go(func() { c.Resume(t.Context(), ref) })
		}
		if dead, err := c.Kill(t.Context(), ref); err != nil || dead.State != sandbox.Dead {
			t.Errorf("kill: got %v, %v", dead.State, err)
		}
		wg.Wait()
	}
	if left := append(in.images(), in.leftovers()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What is not as it was saved is not resumed, and nothing of it is lost.
func TestDamagedImage(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	pauseIt(t, c, ref)
	refused := func(what string) {
		t.Helper()
		_, err := c.Resume(t.Context(), ref)
		if e := sandbox.AsError(err); e == nil || e.Kind != sandbox.Conflict || !strings.Contains(e.Value, what) || e.Hint == "" {
			t.Errorf("%s: got %+v, want a conflict that names it", what, e)
		}
		if sb, err := c.Get(t.Context(), ref); err != nil || sb.State != sandbox.Paused {
			t.Errorf("%s: got %v, %v, want it paused", what, sb.State, err)
		}
	}
	for _, name := range []string{"state", image.ManifestName} {
		path := filepath.Join(in.dirs.Images(), ref, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 4
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(name)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key, err := image.LoadKey(in.dirs.Key())
	if err != nil {
		t.Fatal(err)
	}
	images := image.New(in.dirs.Images(), key)
	ours := reseal(t, images, ref, "another-build")
	refused("another-build")
	reseal(t, images, ref, ours)
	// The driver refuses what the manager cannot know.
	state := filepath.Join(in.dirs.Images(), ref, "state")
	good, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{[]byte("no image"), good} {
		if err := os.WriteFile(state, text, 0o600); err != nil {
			t.Fatal(err)
		}
		reseal(t, images, ref, ours)
		_, err := c.Resume(t.Context(), ref)
		if bad := !bytes.Equal(text, good); bad != (err != nil) {
			t.Errorf("state %q: got %v", text, err)
		}
		if sb, _ := c.Get(t.Context(), ref); err != nil && (sb.State != sandbox.Paused || len(in.leftovers()) > 0) {
			t.Errorf("after a resume that failed: %v, left %v", sb.State, in.leftovers())
		}
	}
	runs(t, c, ref)
}

// reseal writes the manifest anew, of the files as they are and of a build. It
// returns the build that was in it.
func reseal(t *testing.T, images *image.Store, ref, build string) (was string) {
	t.Helper()
	id := sandbox.ID(ref)
	b, err := os.ReadFile(filepath.Join(images.Path(id), image.ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	m, err := image.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	was, m.Build, m.Files = m.Build, build, nil
	if err := errors.Join(os.Rename(images.Path(id), images.Draft(id)), images.Seal(m), images.Publish(id)); err != nil {
		t.Fatal(err)
	}
	return was
}

// At every crash point of a pause or resume nothing is lost and nothing is left.
func TestPauseCrashPoints(t *testing.T) {
	rounds := crashRounds(t, 1)
	want := map[string]sandbox.State{
		manager.CrashPauseBegun: sandbox.Running, manager.CrashPauseSaved: sandbox.Paused,
		manager.CrashPauseRenamed: sandbox.Paused, manager.CrashPausePaused: sandbox.Paused,
		manager.CrashResumeBegun: sandbox.Paused, manager.CrashResumeSent: sandbox.Paused,
		manager.CrashResumeCreated: sandbox.Paused, manager.CrashResumeDone: sandbox.Running,
		manager.CrashPausedKilled: sandbox.Dead,
	}
	for _, point := range manager.PauseCrashPoints() {
		t.Run(point, func(t *testing.T) {
			in := install(t)
			for range rounds {
				ref := in.crashPaused(point)
				c := in.dial()
				var sb sandbox.Sandbox
				within(t, 30*time.Second, "a state that stays", func() bool {
					var err error
					sb, err = c.Get(t.Context(), ref)
					return err == nil && (sb.State == sandbox.Running || sb.State == sandbox.Paused || sb.State == sandbox.Dead)
				})
				if sb.State != want[point] {
					t.Fatalf("got %s (%s), want %s", sb.State, sb.EndMessage, want[point])
				}
				wantImages := 0
				if sb.State == sandbox.Paused {
					wantImages = 1
				}
				within(t, 20*time.Second, "images as the records say", func() bool { return len(in.images()) == wantImages })
				if sb.State == sandbox.Paused {
					within(t, 20*time.Second, "nothing of it on the host", func() bool { return len(in.leftovers()) == 0 })
				}
				if sb.State != sandbox.Dead {
					runs(t, c, ref)
					pauseIt(t, c, ref)
					runs(t, c, ref)
					if _, err := c.Kill(t.Context(), ref); err != nil {
						t.Errorf("kill: %v", err)
					}
				}
				within(t, 20*time.Second, "nothing is left", func() bool { return len(in.leftovers())+len(in.images()) == 0 })
			}
		})
	}
}

// crashPaused has the daemon die at a point in the life of a paused sandbox.
func (in *installation) crashPaused(point string) (ref string) {
	in.t.Helper()
	c := in.dial()
	ref = string(create(in.t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: time.Hour}).ID)
	if !strings.HasPrefix(point, "pause.") {
		pauseIt(in.t, c, ref)
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
	act := dc.Pause
	switch {
	case point == manager.CrashPausedKilled:
		act = dc.Kill
	case strings.HasPrefix(point, "resume."):
		act = dc.Resume
	}
	if _, err := act(ctx, ref); err == nil && point != manager.CrashResumeSent {
		in.t.Errorf("%s: the daemon lived through it", point)
		_ = d.Process.Kill()
	}
	if err := d.Wait(); !killed(err) {
		in.t.Errorf("%s: the daemon ended with %v, want it killed", point, err)
	}
	return ref
}
