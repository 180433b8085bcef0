package gvisor

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

var (
	testEngine string
	testGuest  string
	testGVisor string // version in testEngine
)

func TestMain(m *testing.M) {
	if h := os.Getenv(reapEnv); h != "" {
		if err := reapHandle(h); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if c := os.Getenv(crashEnv); c != "" {
		fmt.Fprintln(os.Stderr, dieAt(c))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "gvisor-test-")
	if err != nil {
		panic(err)
	}
	os.Chmod(dir, 0o755)
	testEngine, testGuest = filepath.Join(dir, "belljar-engine"), filepath.Join(dir, "guest")
	if e := os.Getenv("BELLJAR_TEST_ENGINE"); e != "" {
		testEngine = e
	} else {
		buildStatic(testEngine, "github.com/belljar-sh/belljar/cmd/belljar-engine")
	}
	info, err := buildinfo.ReadFile(testEngine)
	if err != nil {
		panic(err)
	}
	testGVisor = gvisorIn(info)
	if g := os.Getenv("BELLJAR_TEST_GUEST"); g != "" {
		testGuest = g
	} else {
		buildStatic(testGuest, "./testdata/guest")
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func buildStatic(out, pkg string) {
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("go build %s: %v\n%s", pkg, err, b))
	}
}

// box is a running sandbox with the test guest.
type box struct {
	t    testing.TB
	i    driver.Instance
	down *bufio.Reader
}

type guestReply struct {
	Out  string
	Code int
	Err  string
}

func (b *box) ask(q map[string]any) guestReply {
	b.t.Helper()
	r, err := b.tryAsk(q)
	if err != nil {
		b.t.Fatalf("ask %v: %v", q, err)
	}
	return r
}

func (b *box) tryAsk(q map[string]any) (r guestReply, err error) {
	line, _ := json.Marshal(q)
	conn := b.i.Channels().Down
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return r, err
	}
	ans, err := b.down.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(ans, &r)
}

func (b *box) run(argv ...string) guestReply {
	b.t.Helper()
	return b.ask(map[string]any{"op": "run", "argv": argv})
}

// hostRoot makes a root like the host template: empty directories with parts of
// the host laid over.
func hostRoot(t testing.TB) driver.Root {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	r := driver.Root{Path: dir}
	for _, d := range []string{"usr", "etc", "dev", "proc", "sys", "tmp", "run", "home/user", "root", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if fi, err := os.Lstat("/" + l); err == nil && fi.Mode()&os.ModeSymlink != 0 {
			os.Symlink("usr/"+l, filepath.Join(dir, l))
		}
	}
	r.Binds = append(r.Binds, driver.Bind{Source: "/usr", Target: "/usr"})
	os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"), 0o644)
	return r
}

func request(t testing.TB) *driver.CreateRequest {
	dir := t.TempDir()
	os.Chmod(dir, 0o700)
	return &driver.CreateRequest{
		ID: sandbox.NewID(), Dir: dir, Root: hostRoot(t), Guest: testGuest,
		Limits: sandbox.DefaultLimits(2), Hostname: "box", User: driver.User{UID: 1000, GID: 1000},
	}
}

func newDriver(t testing.TB) *Driver {
	d, err := New(Options{Engine: testEngine, GVisor: testGVisor, DebugDir: os.Getenv("BELLJAR_TEST_DEBUG")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// traced logs how long each step takes, where that was asked for.
func traced(t testing.TB, req *driver.CreateRequest) {
	if os.Getenv("BELLJAR_TEST_TRACE") != "" {
		req.Trace = func(name string, start time.Time, took time.Duration) { t.Logf("%-22s %v", name, took) }
	}
}

func start(t testing.TB, d *Driver, req *driver.CreateRequest) *box {
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
	if err := i.Start(t.Context()); err != nil {
		t.Fatal("start:", err)
	}
	return &box{t: t, i: i, down: bufio.NewReader(i.Channels().Down)}
}

func TestLife(t *testing.T) { inModes(t, testLife) }

func testLife(t *testing.T) {
	d := newDriver(t)
	b := start(t, d, request(t))
	if r := b.ask(map[string]any{"op": "echo"}); r.Out != "pid 1 cpus 2" {
		t.Errorf("echo: %+v", r)
	}
	b.ask(map[string]any{"op": "up"})
	up := b.i.Channels().Up
	up.SetDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(up).ReadString('\n')
	if err != nil || line != "hello up\n" {
		t.Errorf("up: %q, %v", line, err)
	}
	if s, err := b.i.Stats(t.Context()); err != nil || s.CPUTime <= 0 || s.MemoryBytes <= 0 || s.Tasks <= 0 {
		t.Errorf("stats: %+v, %v", s, err)
	}
	if err := b.i.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	e, err := b.i.Wait(t.Context())
	if err != nil || e.Status() != 137 || e.OOM || e.Reason != "killed" {
		t.Errorf("exit %+v, %v", e, err)
	}
	if err := b.i.Kill(t.Context()); err != nil {
		t.Errorf("second kill: %v", err)
	}
}

// TestInside: what a program inside sees of its world.
func TestInside(t *testing.T) { inModes(t, testInside) }

func testInside(t *testing.T) {
	req := request(t)
	req.Limits.MemoryBytes = 512 << 20
	req.Limits.DiskBytes = 64 << 20
	req.Limits.OpenFiles = 300
	b := start(t, newDriver(t), req)
	for _, c := range []struct{ name, script, want string }{
		{"hostname", "hostname", "box"},
		{"id", "id -u", "0"},
		{"memory", "sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo", "524288"},
		{"no controlling terminal", "tty; cut -d' ' -f7 /proc/self/stat", "not a tty\n0"},
		{"open files", "ulimit -n", "300"},
		{"re-execute pid 1", "/proc/1/exe self", "re-executed"},
		{"write anywhere", "echo a >/usr/bin/new && echo b >/etc/new && cat /usr/bin/new /etc/new", "a\nb"},
		{"run what was written", "cp /bin/echo /usr/bin/echo2 && /usr/bin/echo2 ok", "ok"},
		{"tmp is on the disk", "stat -c %a /tmp; echo x >/tmp/x; stat -f -c %T /tmp", "1777\noverlayfs"},
		{"tmp of a user", "chmod 755 /tmp/.X11-unix; rmdir /tmp/.X11-unix; ls -A /tmp", "x"},
		{"shm", "df -k --output=size /dev/shm | tail -1 | tr -d ' '", "262144"},
		{"loopback only", "cut -d: -f1 /proc/net/dev | sed 1,2d | tr -d ' '", "lo"},
		{"chown", "touch /tmp/f && chown 1000:1000 /tmp/f && stat -c %u:%g /tmp/f", "1000:1000"},
		{"disk is bounded", "dd if=/dev/zero of=/var/big bs=1M count=100 2>&1 | grep -c 'No space'; rm /var/big; echo ok >/var/small && cat /var/small", "1\nok"},
		{"host files have no owner", "stat -c %U /usr/bin/sh 2>/dev/null || stat -c %u /usr/bin/sh", "65534"},
		{"host secrets", "ls /root /home; cat /etc/shadow 2>&1 | tail -c 26", "/home:\nuser\n\n/root:\nNo such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := b.run("/bin/sh", "-c", c.script)
			got := strings.TrimSpace(r.Out)
			if c.name == "host files have no owner" && got == "UNKNOWN" {
				got = "65534"
			}
			if got != c.want {
				t.Errorf("got %q (%d %s), want %q", got, r.Code, r.Err, c.want)
			}
		})
	}
	if r := b.ask(map[string]any{"op": "run", "uid": 1000, "argv": []string{"/bin/sh", "-c", "id -u; touch /tmp/mine /etc/mine"}}); !strings.HasPrefix(r.Out, "1000\n") || !strings.Contains(r.Out, "/etc/mine") {
		t.Errorf("as user: %+v", r)
	}
}
