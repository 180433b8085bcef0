package daemon_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/daemon"
	"github.com/belljar-sh/belljar/internal/daemon/keepers"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	"github.com/belljar-sh/belljar/internal/guest"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// The test binary plays every program of Belljar, by the name under which it
// is started: the daemon and the keeper are real processes that can be killed,
// and sandboxes are the real guest as a child of the fake driver.
const (
	daemonName = "belljar"
	engineName = "belljar-engine"
	guestName  = "belljar-guest"

	envOutside = "BELLJAR_TEST_OUTSIDE" // for what the fake driver holds
	envGrace   = "BELLJAR_TEST_GRACE"
	envBuild   = "BELLJAR_TEST_DAEMON_BUILD"
	envFail    = "BELLJAR_TEST_FAIL" // a step of the fake driver, and how often it fails
)

func TestMain(m *testing.M) {
	var err error
	switch filepath.Base(os.Args[0]) {
	case daemonName:
		err = playDaemon()
	case engineName:
		err = playEngine(os.Args[1:])
	case guestName:
		err = playGuest()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
}

func playGuest() error {
	if err := guest.Prepare(); err != nil {
		return err
	}
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	f := os.NewFile(3, "down")
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	return channel.ServeGuest(context.Background(), conn, guest.New(context.Background(), guest.Config{}))
}

func playEngine(args []string) error {
	drivers := func() ([]driver.Driver, error) {
		d := fake.New(fake.Options{Outside: os.Getenv(envOutside)})
		if step, times, ok := strings.Cut(os.Getenv(envFail), ":"); ok {
			n, err := strconv.Atoi(times)
			if err != nil {
				return nil, err
			}
			d.On(fake.Step(step), fake.Action{Err: sandbox.Errorf(sandbox.Internal, "told to fail"), Times: n})
		}
		return []driver.Driver{d}, nil
	}
	switch args[0] {
	case "keeper":
		return keeper.Command(context.Background(), args[1:], drivers)
	case "reap":
		return keeper.ReapCommand(context.Background(), args[1:], drivers)
	}
	return fmt.Errorf("unknown role %q", args[0])
}

// starting has the directories whose keeper has no lock yet. The product's own
// launcher locks a directory before it gives it a name.
var starting sync.Map

// launcher starts keepers as belljar does, but in the host's namespaces.
type launcher struct {
	dirs config.Dirs
	bin  string
}

func sibling(name string) string { return filepath.Join(filepath.Dir(os.Args[0]), name) }

func (l launcher) Start(ctx context.Context) (string, error) {
	dir := filepath.Join(l.dirs.Keepers(), strings.ToLower(rand.Text()[:8]))
	starting.Store(dir, true)
	defer starting.Delete(dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	cmd := exec.Command(filepath.Join(l.bin, engineName), "keeper", "--dir", dir, "--status", "3")
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return "", err
	}
	go cmd.Wait()
	var rep keeper.Report
	if err := json.NewDecoder(r).Decode(&rep); err != nil {
		return "", fmt.Errorf("the keeper did not say that it serves: %w", err)
	}
	if !rep.OK {
		return "", rep.Error
	}
	return dir, nil
}

func (l launcher) Reap(ctx context.Context, dir string) error {
	if _, is := starting.Load(dir); is {
		return nil
	}
	out, err := exec.CommandContext(ctx, filepath.Join(l.bin, engineName), "reap", "--dir", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("reap: %w: %s", err, out)
	}
	return nil
}

// templates has the host under two names, one of which seems to have been
// imported: the fake driver isolates nothing.
type templates struct{}

const imported = "plain"

func (templates) Resolve(ctx context.Context, name, user string) (manager.Resolved, error) {
	if name != sandbox.DefaultTemplate && name != imported {
		return manager.Resolved{}, sandbox.Errorf(sandbox.NotFound, "no such template").WithField("template", name)
	}
	return manager.Resolved{Root: driver.Root{Path: "/"}}, nil
}

func (templates) List(ctx context.Context) ([]sandbox.Template, error) {
	return []sandbox.Template{
		{Name: sandbox.DefaultTemplate, Kind: "host", HostBacked: true},
		{Name: imported, Kind: "imported", Digest: "d"},
	}, nil
}

func playDaemon() error {
	dirs, err := config.User()
	if err != nil {
		return err
	}
	grace, _ := time.ParseDuration(os.Getenv(envGrace)) // 0: the default
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	b := build.ID()
	if v := os.Getenv(envBuild); v != "" {
		b = v
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return daemon.Run(ctx, daemon.Options{
		Dirs: dirs, Templates: templates{}, Boundaries: []sandbox.Boundary{sandbox.GVisor},
		Keepers: keepers.New(keepers.Options{Dir: dirs.Keepers(), Launcher: launcher{dirs, filepath.Dir(os.Args[0])}, Log: log}),
		Guest:   sibling(guestName), Version: build.Version, Build: b,
		Grace: grace, Log: log, CrashPoints: true,
	})
}

// installation is one user's Belljar in a directory of its own.
type installation struct {
	t       testing.TB
	dirs    config.Dirs
	bin     string
	outside string
}

func install(t testing.TB) *installation {
	t.Helper()
	// Not t.TempDir: sockets need short paths.
	base, err := os.MkdirTemp("/tmp", "bj")
	if err != nil {
		t.Fatal(err)
	}
	in := &installation{
		t: t, bin: filepath.Join(base, "bin"), outside: filepath.Join(base, "out"),
		dirs: config.Dirs{State: filepath.Join(base, "s"), Runtime: filepath.Join(base, "r")},
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{in.bin, in.outside} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{daemonName, engineName, guestName} {
		if err := os.Symlink(self, filepath.Join(in.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(in.dirs.MakeRuntime(), in.dirs.MakeState()); err != nil {
		t.Fatal(err)
	}
	os.Setenv(envOutside, in.outside) // inherited by daemons that a client starts
	t.Cleanup(func() {
		in.end()
		if t.Failed() {
			if b, err := os.ReadFile(in.dirs.DaemonLog()); err == nil {
				t.Logf("daemon.log:\n%s", b)
			}
		}
		os.RemoveAll(base)
	})
	return in
}

// end kills whatever the installation still runs and tells of it.
func (in *installation) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if c, err := client.Dial(ctx, in.options(true)); err == nil {
		if err := c.Stop(ctx, true); err != nil {
			in.t.Errorf("stop: %v", err)
		}
		c.Close()
	}
	in.nothingLeft()
}

// nothingLeft checks that no sandbox has left anything.
func (in *installation) nothingLeft() {
	in.t.Helper()
	if left := in.leftovers(); len(left) > 0 {
		in.t.Errorf("left on the host: %v", left)
	}
}

// leftovers lists what sandboxes hold on the host: the fake driver's files and
// marked processes.
func (in *installation) leftovers() (out []string) {
	files, err := os.ReadDir(in.outside)
	if err != nil {
		in.t.Fatal(err)
	}
	for _, f := range files {
		out = append(out, "file "+f.Name())
	}
	return append(out, in.processes(guestName)...)
}

// processes lists the living processes of a program of this installation.
func (in *installation) processes(name string) (out []string) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		in.t.Fatal(err)
	}
	for _, p := range procs {
		b, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err == nil && strings.HasPrefix(string(b), filepath.Join(in.bin, name)+"\x00") {
			out = append(out, name+" "+p.Name())
		}
	}
	return out
}

func (in *installation) options(noStart bool) client.Options {
	return client.Options{
		StateDir: in.dirs.State, RuntimeDir: in.dirs.Runtime,
		Program: filepath.Join(in.bin, daemonName), NoStart: noStart, Build: build.ID(),
	}
}

// dial reaches the daemon, starting it.
func (in *installation) dial() *client.Client {
	in.t.Helper()
	c, err := client.Dial(in.t.Context(), in.options(false))
	if err != nil {
		in.t.Fatalf("dial: %v", err)
	}
	in.t.Cleanup(c.Close)
	return c
}

// daemon starts a daemon as a child, with extra environment.
func (in *installation) daemon(env ...string) *exec.Cmd {
	in.t.Helper()
	log, err := os.OpenFile(in.dirs.DaemonLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		in.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(in.bin, daemonName), "daemon", "run")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), append(env,
		config.EnvState+"="+in.dirs.State, config.EnvRuntime+"="+in.dirs.Runtime, envOutside+"="+in.outside)...)
	if err := cmd.Start(); err != nil {
		in.t.Fatal(err)
	}
	return cmd
}

// pid tells the daemon's.
func pid(t testing.TB, c *client.Client) int {
	t.Helper()
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatalf("info: %v", err)
	}
	return info.PID
}

// within polls until ok, for at most d.
func within(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, d)
		}
	}
}
