package keeper_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// running is a keeper under test.
type running struct {
	*keeperclient.Client
	dir     string
	outside string
	driver  *fake.Driver
	stop    context.CancelFunc
	ended   chan error
}

// start runs a keeper in this process with the given driver.
func start(t testing.TB, opts keeper.Options, fo fake.Options) *running {
	t.Helper()
	if fo.Serve == nil {
		fo.Serve = testguest.Run
	}
	fo.Outside = t.TempDir()
	opts.Dir = keeperDir(t)
	d := fake.New(fo)
	opts.Drivers = []driver.Driver{d}
	ready := make(chan struct{})
	opts.Ready = func() { close(ready) }
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{dir: opts.Dir, outside: fo.Outside, driver: d, stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- keeper.Run(ctx, opts) }()
	select {
	case <-ready:
	case err := <-r.ended:
		t.Fatalf("keeper: %v", err)
	}
	r.Client = keeperclient.New(opts.Dir)
	t.Cleanup(func() {
		r.Close()
		r.end(t)
	})
	return r
}

// end stops the keeper and checks that it has left nothing.
func (r *running) end(t testing.TB) {
	t.Helper()
	r.stop()
	err, ok := <-r.ended
	if !ok {
		return
	}
	close(r.ended)
	if err != nil {
		t.Errorf("keeper: %v", err)
	}
	if _, err := os.Lstat(r.dir); !os.IsNotExist(err) {
		t.Errorf("the keeper's directory is still there: %v", err)
	}
	left, err := os.ReadDir(r.outside)
	if err != nil || len(left) != 0 {
		t.Errorf("outside: %v, %v, want nothing left", left, err)
	}
}

// keeperDir makes a directory in memory where there is one, as /run is.
func keeperDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "keeper")
	if err != nil {
		dir = filepath.Join(t.TempDir(), "k")
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func request(id sandbox.ID) *wire.Create {
	return &wire.Create{
		ID: id, Boundary: sandbox.GVisor, Limits: sandbox.DefaultLimits(2),
		Hello: guest.Hello{Generation: 7, Hostname: "test", User: "root"},
	}
}

func (r *running) create(t testing.TB) sandbox.ID {
	t.Helper()
	id := sandbox.NewID()
	if _, err := r.Create(t.Context(), request(id)); err != nil {
		t.Fatalf("create: %v", err)
	}
	return id
}

// ask sends one request to a guest and returns status and body.
func (r *running) ask(t testing.TB, id sandbox.ID, gen uint64, method, path string, body io.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := r.Guest(id, gen).RoundTrip(guestRequest(t, method, path, body))
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, string(b)
}

func guestRequest(t testing.TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://guest"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestLife(t *testing.T) {
	k := start(t, keeper.Options{Kind: "run"}, fake.Options{})
	h, err := k.Hello(t.Context())
	if err != nil || h.PID != os.Getpid() || h.Instance == "" {
		t.Fatalf("hello = %+v, %v", h, err)
	}
	id := sandbox.NewID()
	c, err := k.Create(t.Context(), request(id))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Running || c.Generation != 7 || len(c.Limits) != 5 || c.Reply.Protocol != guest.Protocol || len(c.Timeline) < 4 {
		t.Errorf("created = %+v", c)
	}
	if _, err := k.Create(t.Context(), request(id)); sandbox.KindOf(err) != sandbox.AlreadyExists {
		t.Errorf("second create: %v, want already_exists", err)
	}
	list, err := k.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("list = %+v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(k.dir, "sandboxes", string(id), "handle.json")); err != nil {
		t.Errorf("handle: %v", err)
	}
	waited := make(chan wire.Status, 1)
	go func() {
		s, _ := k.Wait(t.Context(), id)
		waited <- s
	}()
	if resp, _ := k.ask(t, id, 7, "POST", "/v1/test/exit?code=3", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("exit: status %d", resp.StatusCode)
	}
	if s := <-waited; s.Running || s.Exit == nil || s.Exit.Code != 3 || s.Fault != "" {
		t.Errorf("waited = %+v, exit %+v, want exit code 3", s, s.Exit)
	}
	for range 2 { // idempotent
		if _, err := k.Delete(t.Context(), id); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := k.Status(t.Context(), id); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("status after delete: %v, want not_found", err)
	}
}

func TestOOMIsReported(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{Serve: func(ctx context.Context, down, up net.Conn) int {
		if code := testguest.Run(ctx, down, up); code == 0 {
			return fake.ExitOOM
		}
		return 1
	}})
	id := k.create(t)
	k.ask(t, id, 7, "POST", "/v1/test/exit?code=0", nil)
	s, err := k.Wait(t.Context(), id)
	if err != nil || s.Exit == nil || !s.Exit.OOM || s.Exit.Status() != 137 {
		t.Errorf("exit = %+v, %v, want OOM and 137", s.Exit, err)
	}
}

func TestGenerationAndHeaders(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	for _, gen := range []uint64{6, 8} {
		resp, body := k.ask(t, id, gen, "GET", "/v1/ping", nil)
		if resp.StatusCode != http.StatusConflict || !strings.Contains(body, "generation") {
			t.Errorf("generation %d: %d %s, want 409", gen, resp.StatusCode, body)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://guest/v1/test/headers", nil)
	req.Header.Set("Authorization", "Bearer secret")
	req.Header.Set("Cookie", "secret")
	req.Header.Set("Range", "bytes=0-1")
	resp, err := k.Guest(id, 7).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var seen http.Header
	if err := json.NewDecoder(resp.Body).Decode(&seen); err != nil {
		t.Fatal(err)
	}
	if seen.Get("Authorization") != "" || seen.Get("Cookie") != "" {
		t.Errorf("credentials reached the guest: %v", seen)
	}
	if seen.Get("Range") == "" || seen.Get(guest.HeaderGeneration) != "7" {
		t.Errorf("the guest saw %v, want Range and the generation", seen)
	}
	for _, name := range []string{"Set-Cookie", "Location", "Access-Control-Allow-Origin"} {
		if v := resp.Header.Get(name); v != "" {
			t.Errorf("header %s: %q passed from the guest", name, v)
		}
	}
	if v := resp.Header.Get("Content-Type"); v != "application/x-test" {
		t.Errorf("Content-Type = %q", v)
	}
}

func TestGuestPaths(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{"POST", "/v1/hello", 403},
		{"POST", "/v1/quiesce", 403},
		{"PATCH", "/v1/ping", 400},
		{"GET", "/v2/ping", 404},
		{"GET", "/v1/nothing", 404},
		{"GET", "/v1/ping", 204},
	} {
		resp, _ := k.ask(t, id, 7, tc.method, tc.path, nil)
		if resp.StatusCode != tc.want {
			t.Errorf("%s %s: status %d, want %d", tc.method, tc.path, resp.StatusCode, tc.want)
		}
	}
	resp, _ := k.ask(t, sandbox.NewID(), 7, "GET", "/v1/ping", nil)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown sandbox: status %d, want 404", resp.StatusCode)
	}
}

func TestBytesBothWays(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	const n = 16 << 20
	want := testguest.NoiseSum(n)
	_, body := k.ask(t, id, 7, "PUT", "/v1/test/sum", io.NopCloser(testguest.Noise(n)))
	if body != want {
		t.Errorf("upload: digest %s, want %s", body, want)
	}
	_, body = k.ask(t, id, 7, "GET", "/v1/test/bytes?n=16777216", nil)
	if len(body) != n {
		t.Errorf("download: %d bytes, want %d", len(body), n)
	}
	noise, _ := io.ReadAll(testguest.Noise(n))
	if body != string(noise) {
		t.Error("download: bytes differ")
	}
	s, err := k.Stats(t.Context(), id)
	if err != nil || s.ReadBytes < n || s.WrittenBytes < n {
		t.Errorf("stats = %+v, %v, want both ways counted", s, err)
	}
}

// TestFullDuplex has each message wait for the answer to the one before.
func TestFullDuplex(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	pr, pw := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://guest/v1/test/echo", pr)
	resp, err := k.Guest(id, 7).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 5)
	for range 100 {
		io.WriteString(pw, "hello")
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "hello" {
			t.Fatalf("echo %q, %v", buf, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestUpIsRefused(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	_, body := k.ask(t, id, 7, "POST", "/v1/test/up?dest=example.com:443", nil)
	var up testguest.Up
	if err := json.Unmarshal([]byte(body), &up); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if up.Kind != sandbox.Denied || !strings.Contains(up.Error, keeper.DefaultDeny) {
		t.Errorf("up = %+v, want denied by %s", up, keeper.DefaultDeny)
	}
	if st, err := k.Stats(t.Context(), id); err != nil || st.EgressRefused != 1 {
		t.Errorf("stats: %d refused, %v, want 1", st.EgressRefused, err)
	}
}

func TestCreateFails(t *testing.T) {
	boom := sandbox.Errorf(sandbox.ResourceExhausted, "boom")
	for _, step := range []fake.Step{fake.Handle, fake.Create, fake.CreateHalf, fake.Start} {
		t.Run(string(step), func(t *testing.T) {
			k := start(t, keeper.Options{}, fake.Options{})
			k.driver.On(step, fake.Action{Err: boom, Times: 1})
			id := sandbox.NewID()
			_, err := k.Create(t.Context(), request(id))
			if sandbox.KindOf(err) != sandbox.ResourceExhausted {
				t.Errorf("create: %v, want boom", err)
			}
			if list, _ := k.List(t.Context()); len(list) != 0 {
				t.Errorf("list = %v, want nothing", list)
			}
			if _, err := k.Create(t.Context(), request(id)); err != nil {
				t.Errorf("create again: %v", err)
			}
		})
	}
}

func TestDeleteWhileCreating(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	k.driver.On(fake.Create, fake.Action{Block: true})
	id := sandbox.NewID()
	got := make(chan error, 1)
	go func() {
		_, err := k.Create(t.Context(), request(id))
		got <- err
	}()
	eventually(t, "the create blocks", func() bool { return k.driver.Seen(fake.Create) > 0 })
	if _, err := k.Delete(t.Context(), id); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := <-got; sandbox.KindOf(err) != sandbox.Canceled {
		t.Errorf("create: %v, want canceled", err)
	}
}

func TestCallerLeavesWhileCreating(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	k.driver.On(fake.Start, fake.Action{Block: true})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := k.Create(ctx, request(sandbox.NewID()))
		got <- err
	}()
	eventually(t, "the create blocks", func() bool { return k.driver.Seen(fake.Start) > 0 })
	cancel()
	<-got
	eventually(t, "the sandbox is forgotten", func() bool {
		list, err := k.List(t.Context())
		return err == nil && len(list) == 0
	})
}

func TestTooManyCreates(t *testing.T) {
	release := make(chan struct{})
	k := start(t, keeper.Options{MaxCreates: 1, MaxWaiting: 2}, fake.Options{})
	k.driver.On(fake.Create, fake.Action{Block: true, Release: release})
	got := make(chan error, 8)
	for range 8 {
		go func() {
			_, err := k.Create(t.Context(), request(sandbox.NewID()))
			got <- err
		}()
	}
	refused := 0
	for range 5 {
		if err := <-got; sandbox.KindOf(err) == sandbox.Unavailable && sandbox.KindOf(err).Retryable() {
			refused++
		} else {
			t.Errorf("create: %v, want unavailable", err)
		}
	}
	close(release)
	for range 3 {
		if err := <-got; err != nil {
			t.Errorf("create: %v", err)
		}
	}
	if refused != 5 {
		t.Errorf("%d refused, want 5", refused)
	}
}

func TestConcurrentCreates(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	got := make(chan error, 50)
	for range 50 {
		go func() {
			_, err := k.Create(t.Context(), request(sandbox.NewID()))
			got <- err
		}()
	}
	for range 50 {
		if err := <-got; err != nil {
			t.Errorf("create: %v", err)
		}
	}
	list, err := k.List(t.Context())
	if err != nil || len(list) != 50 {
		t.Errorf("%d sandboxes, %v, want 50", len(list), err)
	}
	if err := k.Stop(t.Context(), false); err != nil {
		t.Errorf("stop: %v", err)
	}
	k.end(t)
}

func TestDrain(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	if err := k.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Create(t.Context(), request(sandbox.NewID())); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("create: %v, want unavailable", err)
	}
	if h, err := k.Hello(t.Context()); err != nil || !h.Draining {
		t.Errorf("hello = %+v, %v, want draining", h, err)
	}
	if _, err := k.Delete(t.Context(), id); err != nil && sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("delete: %v", err)
	}
	if err := <-k.ended; err != nil {
		t.Errorf("keeper: %v", err)
	}
	close(k.ended)
}

func TestLifeline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k := start(t, keeper.Options{Lifeline: r}, fake.Options{})
	k.create(t)
	w.Close()
	if err := <-k.ended; err != nil {
		t.Errorf("keeper: %v", err)
	}
	k.ended <- nil
	k.end(t)
}

func TestIdleExit(t *testing.T) {
	k := start(t, keeper.Options{IdleExit: 20 * time.Millisecond}, fake.Options{})
	k.create(t)
	k.Close()
	select {
	case err := <-k.ended:
		t.Fatalf("ended with a sandbox: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	c := keeperclient.New(k.dir)
	if err := c.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("list = %v, %v", list, err)
	}
	c.Delete(t.Context(), list[0].ID)
	c.Close()
	if err := <-k.ended; err != nil {
		t.Errorf("keeper: %v", err)
	}
	close(k.ended)
}

func TestLockIsHeld(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	if err := keeper.Reap(t.Context(), k.dir, []driver.Driver{k.driver}); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("reap of a living keeper: %v, want conflict", err)
	}
	err := keeper.Run(t.Context(), keeper.Options{Dir: k.dir, Drivers: []driver.Driver{k.driver}})
	if sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("second keeper: %v, want conflict", err)
	}
	if _, err := k.Hello(t.Context()); err != nil {
		t.Errorf("the first keeper: %v", err)
	}
}

func TestDirIsChecked(t *testing.T) {
	dir := keeperDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := keeper.Run(t.Context(), keeper.Options{Dir: dir}); sandbox.KindOf(err) != sandbox.Denied {
		t.Errorf("mode 0755: %v, want denied", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(keeperDir(t), link); err != nil {
		t.Fatal(err)
	}
	if err := keeper.Run(t.Context(), keeper.Options{Dir: link}); sandbox.KindOf(err) != sandbox.Denied {
		t.Errorf("a link: %v, want denied", err)
	}
}

func TestFailedRemovalCanBeRepeated(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	k.driver.On(fake.Reap, fake.Action{Err: sandbox.Errorf(sandbox.Internal, "busy"), Times: 1})
	if _, err := k.Delete(t.Context(), id); err == nil {
		t.Error("delete succeeded although Reap failed")
	}
	if _, err := k.Status(t.Context(), id); err != nil {
		t.Errorf("status: %v, want it still listed", err)
	}
	if _, err := k.Delete(t.Context(), id); err != nil {
		t.Errorf("delete again: %v", err)
	}
}

func TestSendFiles(t *testing.T) {
	k := start(t, keeper.Options{TicketTimeout: 50 * time.Millisecond}, fake.Options{})
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ticket, err := k.SendFiles(t.Context(), []*os.File{f, f})
	if err != nil {
		t.Fatal(err)
	}
	req := request(sandbox.NewID())
	req.Mounts = []wire.Mount{{Ticket: ticket, Index: 1, Target: "/w"}}
	if _, err := k.Create(t.Context(), req); err != nil {
		t.Errorf("create: %v", err)
	}
	req.ID = sandbox.NewID()
	if _, err := k.Create(t.Context(), req); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("ticket used twice: %v, want not_found", err)
	}
	fds := openFDs(t)
	if _, err = k.SendFiles(t.Context(), []*os.File{f}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ticket lapses", func() bool { return openFDs(t) <= fds })
}

func openFDs(t testing.TB) int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// eventually waits for something that happens in another goroutine.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		}
	}
}
