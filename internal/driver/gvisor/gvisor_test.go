package gvisor

import (
	"bufio"
	"context"
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
)

func TestMain(m *testing.M) {
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
	d, err := New(Options{Engine: testEngine, DebugDir: os.Getenv("BELLJAR_TEST_DEBUG")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func start(t testing.TB, d *Driver, req *driver.CreateRequest) *box {
	t.Helper()
	if os.Getenv("BELLJAR_TEST_TRACE") != "" {
		req.Trace = func(name string, start time.Time, took time.Duration) { t.Logf("%-22s %v", name, took) }
	}
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
	for _, c := range [][]string{
		{"/bin/sh", "-c", "id; uname -a; mount; df -h; ls -lan / /tmp /home; touch /usr/bin/x /tmp/y; ls -l /usr/bin/x /tmp; nproc; free -m; cat /proc/self/status | grep -i cap; ls -la /proc/1/exe; /proc/1/exe self; ulimit -a; ip a"},
	} {
		r := b.run(c...)
		t.Logf("%v\n%s %s", c, r.Out, r.Err)
	}
	s, err := b.i.Stats(t.Context())
	t.Logf("%+v %v %+v", s, err, b.i.Limits())
	if err := b.i.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	e, err := b.i.Wait(t.Context())
	if err != nil || e.Status() != 137 || !strings.Contains(e.Reason, "killed") {
		t.Errorf("exit %+v, %v", e, err)
	}
}
