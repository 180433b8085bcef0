package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/sandbox"
)

// Of many that need a daemon at once one starts it.
func TestOneDaemon(t *testing.T) {
	in := install(t)
	var mu sync.Mutex
	pids := map[int]int{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			c, err := client.Dial(t.Context(), in.options(false))
			if err != nil {
				t.Errorf("dial: %v", err)
				return
			}
			defer c.Close()
			info, err := c.Info(t.Context())
			if err != nil {
				t.Errorf("info: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			pids[info.PID]++
		})
	}
	wg.Wait()
	if len(pids) != 1 {
		t.Errorf("got the daemons %v, want one", pids)
	}
	if d := in.processes(daemonName); len(d) != 1 {
		t.Errorf("got %v, want one process", d)
	}
	// A second one by hand says what is wrong.
	second := in.daemon()
	var exit interface{ ExitCode() int }
	if err := second.Wait(); !errors.As(err, &exit) || exit.ExitCode() == 0 {
		t.Errorf("a second daemon ended with %v, want a failure", err)
	}
	if log, err := os.ReadFile(in.dirs.DaemonLog()); err != nil || !strings.Contains(string(log), "another daemon of this user is running") {
		t.Errorf("the log does not say why: %v", err)
	}
}

func TestManyCreatesAtOnce(t *testing.T) {
	in := install(t)
	c := in.dial()
	const n = 50
	ids := make(chan sandbox.ID, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			made, err := c.Create(t.Context(), sandbox.Spec{User: "root", Workdir: "/"}, &client.Start{Argv: []string{"/bin/true"}})
			if err != nil {
				if !sandbox.KindOf(err).Retryable() {
					t.Errorf("create: %v, want none or a retryable error", err)
				}
				return
			}
			ids <- made.Sandbox.ID
		})
	}
	wg.Wait()
	close(ids)
	if len(ids) < n {
		t.Logf("%d of %d were created", len(ids), n)
	}
	if len(ids) == 0 {
		t.Error("none was created")
	}
	for range 4 { // the fake driver looks through all processes of the host
		wg.Go(func() {
			for id := range ids {
				if _, err := c.Kill(t.Context(), string(id)); err != nil {
					t.Errorf("kill: %v", err)
				}
			}
		})
	}
	wg.Wait()
	in.nothingLeft()
}

// A create that its caller gives up leaves nothing.
func TestCreateGivenUp(t *testing.T) {
	in := install(t)
	c := in.dial()
	create(t, c, sandbox.Spec{User: "root", Workdir: "/"}) // the keeper is there now
	for i := range 20 {
		ctx, cancel := contextWithin(t, time.Duration(i)*time.Millisecond)
		_, err := c.Create(ctx, sandbox.Spec{User: "root", Workdir: "/"}, nil)
		cancel()
		if k := sandbox.KindOf(err); err != nil && k != sandbox.Canceled && k != sandbox.DeadlineExceeded {
			t.Errorf("create: %v", err)
		}
	}
	within(t, 20*time.Second, "what was given up is gone", func() bool {
		live, err := c.List(t.Context(), false)
		for _, sb := range live {
			if sb.State != sandbox.Running {
				return false
			}
		}
		return err == nil && len(in.leftovers()) == 2*len(live)
	})
}

func TestIdleDaemonEnds(t *testing.T) {
	in := install(t)
	t.Setenv(envGrace, "300ms")
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	first := pid(t, c)
	select { // beyond the grace: a sandbox keeps it
	case <-time.After(700 * time.Millisecond):
	case <-t.Context().Done():
	}
	if got := pid(t, c); got != first {
		t.Errorf("a daemon with a sandbox ended")
	}
	if _, err := c.Kill(t.Context(), string(sb.ID)); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the daemon ends", func() bool { return len(in.processes(daemonName)) == 0 })
	within(t, 10*time.Second, "its keeper ends", func() bool { return len(in.processes(engineName)) == 0 })
	if _, err := os.Lstat(in.dirs.DaemonSocket()); !os.IsNotExist(err) {
		t.Errorf("its socket is still there: %v", err)
	}
	if _, err := client.Dial(t.Context(), in.options(true)); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("dial without start: got %v, want unavailable", err)
	}
	if got, err := in.dial().Get(t.Context(), string(sb.ID)); err != nil || got.State != sandbox.Dead {
		t.Errorf("after a restart: got %v, %v, want the dead record", got.State, err)
	}
}

// SIGTERM ends the daemon and leaves its sandboxes, whose execs go on.
func TestTerm(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), string(sb.ID), client.ExecOptions{
			Argv:    []string{"/bin/sh", "-c", "echo a; sleep 1; echo b"},
			Streams: client.Streams{Stdout: &out},
		})
		done <- err
	}()
	within(t, 10*time.Second, "the exec runs", func() bool {
		ps, err := c.Processes(t.Context(), string(sb.ID))
		return err == nil && len(ps) == 1
	})
	first := pid(t, c)
	if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || out.String() != "a\nb\n" {
		t.Errorf("exec: %v, %q", err, out.String())
	}
	if got := pid(t, c); got == first {
		t.Error("the daemon is still the first")
	}
}

func TestBuildMismatch(t *testing.T) {
	in := install(t)
	t.Setenv(envBuild, "another")
	o := in.options(false)
	c, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var e *sandbox.Error
	if _, err := c.List(t.Context(), false); !errors.As(err, &e) || e.Kind != sandbox.Conflict || !strings.Contains(e.Hint, "belljar daemon stop") {
		t.Errorf("got %v, want a conflict with the remedy", err)
	}
	if info, err := c.Info(t.Context()); err != nil || info.Build != "another" {
		t.Errorf("info: got %+v, %v", info, err)
	}
	o.Build = "" // a program that does not mind
	any, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer any.Close()
	if _, err := any.List(t.Context(), false); err != nil {
		t.Errorf("list: %v", err)
	}
	if err := c.Stop(t.Context(), false); err != nil {
		t.Errorf("stop: %v", err)
	}
	os.Unsetenv(envBuild)
	if _, err := c.List(t.Context(), false); err != nil {
		t.Errorf("after the remedy: %v", err)
	}
}

// A daemon that cannot start says why, at once, to whoever reached its socket
// before and to whoever comes later.
func TestDaemonThatCannotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		file func(d config.Dirs) string
		says string
	}{
		"journal": {config.Dirs.Database, "journal"},
		"quota":   {config.Dirs.Quota, "quota"},
		"key":     {config.Dirs.Key, "key"},
	} {
		t.Run(name, func(t *testing.T) {
			in := install(t)
			path := tc.file(in.dirs)
			if err := os.WriteFile(path, []byte(strings.Repeat("garbage ", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range 5 {
				c, err := client.Dial(t.Context(), in.options(false))
				if err == nil { // the connection may be made before it fails
					_, err = c.Info(t.Context())
					c.Close()
				}
				if sandbox.KindOf(err) != sandbox.Unavailable || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, which does not say why", err)
				}
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestVolumes(t *testing.T) {
	in := install(t)
	c := in.dial()
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	handles, err := c.SendFiles(t.Context(), []*os.File{f, f})
	if err != nil || len(handles) != 2 {
		t.Fatalf("got %v, %v", handles, err)
	}
	spec := sandbox.Spec{User: "root", Workdir: "/", Mounts: []sandbox.Mount{
		{Handle: handles[0], Source: dir, Target: "/work"}, {Handle: handles[1], Source: dir, Target: "/ro", ReadOnly: true},
	}}
	sb := create(t, c, spec)
	if len(sb.Mounts) != 2 || sb.Mounts[0].Source != dir {
		t.Errorf("got %+v", sb.Mounts)
	}
	if _, err := c.Create(t.Context(), spec, nil); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("the same handles again: got %v, want not_found", err)
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Handle: "/etc", Target: "/x"}}}, nil); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("a host path: got %v, want invalid", err)
	}
}

// Others may not enter the runtime directory.
func TestForeignDirectory(t *testing.T) {
	in := install(t)
	if err := os.Chmod(in.dirs.Runtime, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(t.Context(), in.options(false)); sandbox.KindOf(err) != sandbox.Denied {
		t.Errorf("a directory that others may enter: got %v, want denied", err)
	}
	os.Chmod(in.dirs.Runtime, 0o700)
	link := filepath.Join(filepath.Dir(in.dirs.Runtime), "link")
	if err := os.Symlink(in.dirs.Runtime, link); err != nil {
		t.Fatal(err)
	}
	o := in.options(false)
	o.RuntimeDir = link
	if _, err := client.Dial(t.Context(), o); sandbox.KindOf(err) != sandbox.Denied {
		t.Errorf("a link: got %v, want denied", err)
	}
}

// Files of any size go up and come down unchanged.
func TestFiles(t *testing.T) {
	in := install(t)
	c := in.dial()
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/"})
	ref, dir := string(sb.ID), t.TempDir()
	for _, size := range []int{0, 1, 18 << 10, 16 << 20} {
		want := bytes.Repeat([]byte("0123456789abcdef-"), size/17+1)[:size]
		path := filepath.Join(dir, "a", "ü\n "+strings.Repeat("x", size%7))
		for _, known := range []int64{int64(size), -1} {
			e, err := c.PutFile(t.Context(), ref, path, "root", 0o640, struct{ io.Reader }{bytes.NewReader(want)}, known)
			if err != nil || e.Size != int64(size) || e.Mode&0o777 != 0o640 {
				t.Fatalf("put %d (%d): got %+v, %v", size, known, e, err)
			}
		}
		f, err := c.GetFile(t.Context(), ref, path, "root", 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		f.Close()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("get %d: got %d bytes, %v", size, len(got), err)
		}
		if size > 1000 {
			f, err := c.GetFile(t.Context(), ref, path, "root", 1000)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(f)
			f.Close()
			if err != nil || !bytes.Equal(got, want[1000:]) {
				t.Errorf("get %d from 1000 on: got %d bytes, %v", size, len(got), err)
			}
		}
	}
	list, err := c.ReadDir(t.Context(), ref, dir, "root", 2)
	if err != nil || len(list) < 2 {
		t.Errorf("dir: got %v, %v", list, err)
	}
	if _, err := c.Move(t.Context(), ref, filepath.Join(dir, "a"), filepath.Join(dir, "b"), "root"); err != nil {
		t.Errorf("move: %v", err)
	}
	if _, err := c.Stat(t.Context(), ref, filepath.Join(dir, "a"), "root"); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("stat of what was moved: got %v, want not_found", err)
	}
	archive, err := c.GetTar(t.Context(), ref, filepath.Join(dir, "b"), "root")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PutTar(t.Context(), ref, filepath.Join(dir, "c"), "root", archive); err != nil {
		t.Errorf("tar: %v", err)
	}
	archive.Close()
	if err := c.Remove(t.Context(), ref, filepath.Join(dir, "b"), "root"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if e, err := c.Mkdir(t.Context(), ref, filepath.Join(dir, "d/e"), "root"); err != nil || e.Type != "directory" {
		t.Errorf("mkdir: got %+v, %v", e, err)
	}
}

func contextWithin(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
