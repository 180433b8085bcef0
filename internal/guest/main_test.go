package guest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/guest"
	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

const guestEnv = "BELLJAR_TEST_GUEST"

// TestMain lets the test binary be the guest: a child process with the channel
// on descriptor 3, as in a sandbox.
func TestMain(m *testing.M) {
	testenv.CatchSignals()
	if v := os.Getenv(guestEnv); v != "" {
		if err := beGuest(v); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func beGuest(config string) error {
	var cfg guest.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	syscall.CloseOnExec(3)
	f := os.NewFile(3, "down")
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	if err := guest.Prepare(); err != nil {
		return err
	}
	if cfg.Init {
		if err := ownNamespaces(); err != nil {
			return err
		}
	}
	ctx := context.Background()
	s := guest.New(ctx, cfg)
	err = channel.ServeGuest(ctx, conn, s)
	cerr := s.Close(ctx)
	if err == nil {
		err = cerr
	}
	return err
}

// ownNamespaces makes PID 1 of new namespaces see its own processes, and keeps
// what it mounts to itself.
func ownNamespaces() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("pid %d is not 1", os.Getpid())
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	return syscall.Mount("proc", "/proc", "proc", 0, "")
}

// box is a guest under test and a client of it.
type box struct {
	cfg guest.Config
	*guestclient.Client
	t    testing.TB
	host *channel.Host
	cmd  *exec.Cmd
	home string // of user
	user string // whom processes run as by default
	hi   wire.Hello
}

// options change how start makes a box.
type options struct {
	cfg   guest.Config
	hello func(*wire.Hello)
	attr  *syscall.SysProcAttr
	mute  bool // no hello
}

// tester is the name of the user that the tests run as.
func tester() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "me"
}

// newBox starts a guest with users of its own: root, user (1000) with a home
// in a temporary directory, and me, who runs the tests.
func newBox(t testing.TB, o options) *box {
	t.Helper()
	dir := t.TempDir()
	openUp(t, dir)
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(home, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	passwd := fmt.Sprintf("root:x:0:0::%[1]s/root:/bin/sh\nuser:x:1000:1000::%[1]s/home:/bin/sh\nme:x:%[2]d:%[3]d::%[1]s/home:/bin/sh\nbroken line\nghost:x:4294967295:1::/:/bin/sh\n",
		dir, os.Geteuid(), os.Getegid())
	group := "root:x:0:\nuser:x:1000:\nextra:x:4242:user,other\n"
	os.Mkdir(filepath.Join(dir, "root"), 0o700)
	o.cfg.Passwd = write(t, filepath.Join(dir, "passwd"), passwd)
	o.cfg.Group = write(t, filepath.Join(dir, "group"), group)
	if o.cfg.RunDir == "" {
		o.cfg.RunDir = filepath.Join(dir, "run")
	}
	b := &box{t: t, home: home, user: tester(), cfg: o.cfg}
	if os.Geteuid() == 0 {
		b.user = "user"
	}
	b.spawn(o)
	b.hi = wire.Hello{
		Protocol: wire.Protocol, Build: build.ID(), SandboxID: sandbox.NewID(), Generation: 1,
		Hostname: "box", User: b.user, Time: time.Now(),
	}
	if o.hello != nil {
		o.hello(&b.hi)
	}
	b.Client = guestclient.New(b.host, "http://guest", b.hi.Generation)
	if !o.mute {
		if _, err := b.Hello(t.Context(), b.hi); err != nil {
			t.Fatalf("hello: %v", err)
		}
	}
	return b
}

// openUp lets other users pass through the parents of a temporary directory.
func openUp(t testing.TB, dir string) {
	t.Helper()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func (b *box) spawn(o options) {
	b.t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	cfg, err := json.Marshal(o.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = []string{guestEnv + "=" + string(cfg), "LEAK=1", "PATH=/leak", "GODEBUG=" + os.Getenv("GUEST_GODEBUG")}
	b.cmd.ExtraFiles = []*os.File{theirs}
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = o.attr
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		b.t.Fatal(err)
	}
	ours.Close()
	if b.host, err = channel.DialHost(conn, channel.DefaultLimits()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.stop)
}

func (b *box) stop() {
	b.host.Close()
	done := make(chan error, 1)
	go func() { done <- b.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			b.t.Errorf("the guest ended badly: %v", err)
		}
	case <-time.After(20 * time.Second):
		b.cmd.Process.Kill()
		b.t.Error("the guest did not end when its channel was closed")
	}
}

var nextID = make(chan string)

func init() {
	go func() {
		for i := 1; ; i++ {
			nextID <- "p" + strconv.Itoa(i)
		}
	}()
}

// begin starts a process.
func (b *box) begin(s wire.Start) wire.Process {
	b.t.Helper()
	if s.ID == "" {
		s.ID = <-nextID
	}
	p, err := b.Start(b.t.Context(), s)
	if err != nil {
		b.t.Fatalf("start %q: %v", s.Argv, err)
	}
	return p
}

// result is what a process wrote and how it ended.
type result struct {
	stdout, stderr string
	lost           int64
	exit           sandbox.Exit
}

// run starts a process and reads it to its end.
func (b *box) run(s wire.Start) result {
	b.t.Helper()
	p := b.begin(s)
	return b.read(p.ID)
}

func (b *box) read(id string) result {
	b.t.Helper()
	o, err := b.Attach(b.t.Context(), id, 0, 0)
	if err != nil {
		b.t.Fatalf("attach: %v", err)
	}
	defer o.Close()
	var r result
	var out, errs bytesWriter
	r.exit, r.lost, err = o.CopyTo(&out, &errs)
	if err != nil {
		b.t.Fatalf("output: %v", err)
	}
	r.stdout, r.stderr = string(out), string(errs)
	return r
}

type bytesWriter []byte

func (w *bytesWriter) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe: effective uid is not 0, so no other user can be become")
	}
}
