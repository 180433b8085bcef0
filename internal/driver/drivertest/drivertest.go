// Package drivertest is the conformance suite of the driver contract. A driver
// passes it by calling [Run] from a test with a function that makes a
// [Fixture]; the guest of every sandbox is the one in testguest.
//
// Every part of the suite checks at its end that nothing is left: processes,
// mounts, descriptors, goroutines and whatever else the fixture can tell.
package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Fixture is a driver and what it needs for sandboxes to run here.
type Fixture struct {
	Driver driver.Driver
	// Guest is the path of the test guest as a program, which [BuildGuest]
	// makes; it may be empty for a driver with a guest of its own in process.
	Guest string
	Root  driver.Root
	User  driver.User

	// Spawns tells that the guest can start processes.
	Spawns bool
	// Many is how many sandboxes are created at the same time; default 8.
	Many int
	// Patience bounds each single step; default 60 s.
	Patience time.Duration

	// Another returns a driver as another process would make it; default:
	// Driver itself.
	Another func() driver.Driver
	// ReapElsewhere reaps in another process, where that is possible.
	ReapElsewhere func(ctx context.Context, h driver.Handle) error
	// Leftovers lists what is left of an instance outside of its Dir, for
	// instance cgroups; nil for a driver without such things.
	Leftovers func(h driver.Handle) []string
}

// Run runs the whole suite. fixture is called once per part.
func Run(t *testing.T, fixture func(t *testing.T) Fixture) {
	f := fixture(t)
	if r := f.Driver.Probe(t.Context()); r.Available != driver.Yes {
		t.Skipf("probe: %s: %s", r.Boundary, r.Reason)
	}
	for _, part := range []struct {
		name string
		run  func(*suite)
	}{
		{"ProbeIsPure", (*suite).probe},
		{"HandleIsPure", (*suite).handle},
		{"Life", (*suite).life},
		{"ExitCode", (*suite).exitCode},
		{"NoGuestBeforeStart", (*suite).noGuestBeforeStart},
		{"StartOnce", (*suite).startOnce},
		{"KillIsIdempotent", (*suite).kill},
		{"KillReachesChildren", (*suite).children},
		{"WaitByMany", (*suite).wait},
		{"DownCarriesBulk", (*suite).down},
		{"UpCarriesBulk", (*suite).up},
		{"Limits", (*suite).limits},
		{"ExplicitLimits", (*suite).explicit},
		{"OutOfMemory", (*suite).outOfMemory},
		{"Stats", (*suite).stats},
		{"ReapAnyState", (*suite).reapAnyState},
		{"ReapElsewhere", (*suite).reapElsewhere},
		{"CreateGivenUp", (*suite).createGivenUp},
		{"ManyAtOnce", (*suite).many},
		{"Checkpoint", (*suite).checkpoint},
		{"Files", (*suite).files},
	} {
		t.Run(part.name, func(t *testing.T) {
			s := &suite{T: t, f: fixture(t)}
			s.warm()
			before := look(t)
			part.run(s)
			before.same(s)
		})
	}
}

// GuestEnv names a variable with the path of a test guest that has been built
// already, for hosts where the test's user cannot build.
const GuestEnv = "BELLJAR_DRIVERTEST_GUEST"

// BuildGuest builds the test guest for this machine, statically linked.
func BuildGuest(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(GuestEnv); path != "" {
		return path
	}
	out := filepath.Join(t.TempDir(), "testguest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out,
		"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the test guest: %v\n%s", err, b)
	}
	return out
}

// suite is one part under way.
type suite struct {
	*testing.T
	f       Fixture
	handles []driver.Handle
}

func (s *suite) patience() time.Duration {
	if s.f.Patience == 0 {
		return time.Minute
	}
	return s.f.Patience
}

// ctx returns a context that bounds one step.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), s.patience())
	s.Cleanup(cancel)
	return ctx
}

// warm runs one sandbox, so that what a driver makes once for all is there
// before things are counted.
func (s *suite) warm() {
	b := s.running()
	b.destroy()
}

func (s *suite) request() *driver.CreateRequest {
	s.Helper()
	dir, err := os.MkdirTemp(s.TempDir(), "driver")
	if err != nil {
		s.Fatal(err)
	}
	return &driver.CreateRequest{
		ID: sandbox.NewID(), Dir: dir, Root: s.f.Root, Guest: s.f.Guest, User: s.f.User,
		Limits: sandbox.DefaultLimits(2), Hostname: "drivertest",
	}
}

// box is one sandbox of the suite.
type box struct {
	s      *suite
	req    *driver.CreateRequest
	handle driver.Handle
	inst   driver.Instance
	host   *channel.Host
}

// create makes an instance that has not started.
func (s *suite) create(req *driver.CreateRequest) *box {
	s.Helper()
	b, err := s.tryCreate(req)
	if err != nil {
		s.Fatalf("create: %v", describe(err))
	}
	return b
}

func (s *suite) tryCreate(req *driver.CreateRequest) (*box, error) {
	h, err := s.f.Driver.Handle(req)
	if err != nil {
		return nil, err
	}
	inst, err := s.f.Driver.Create(s.ctx(), req)
	if err != nil {
		return nil, err
	}
	b := &box{s: s, req: req, handle: h, inst: inst}
	s.Cleanup(func() {
		b.closeChannels()
		inst.Destroy(context.Background())
	})
	s.handles = append(s.handles, h)
	return b, nil
}

// running makes an instance whose guest has answered hello.
func (s *suite) running() *box {
	s.Helper()
	b := s.create(s.request())
	b.start()
	return b
}

func (b *box) start() {
	b.s.Helper()
	if err := b.tryStart(); err != nil {
		b.s.Fatalf("start: %v", describe(err))
	}
}

func (b *box) tryStart() error {
	if err := b.inst.Start(b.s.ctx()); err != nil {
		return err
	}
	return b.hello(b.inst.Channels().Down, 1)
}

// hello speaks to the guest over down as the host of a generation.
func (b *box) hello(down net.Conn, generation uint64) (err error) {
	if b.host, err = channel.DialHost(down, channel.Limits{}); err != nil {
		return err
	}
	hello, err := json.Marshal(guest.Hello{Protocol: guest.Protocol, Build: "test", SandboxID: b.req.ID, Generation: generation})
	if err != nil {
		return err
	}
	status, body, err := b.try("POST", "/v1/hello", bytes.NewReader(hello))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("hello: status %d: %s", status, body)
	}
	return err
}

// ask sends a request to the guest and returns the body of its answer.
func (b *box) ask(method, path string, body io.Reader) string {
	b.s.Helper()
	status, answer, err := b.try(method, path, body)
	if err != nil || status >= 300 {
		b.s.Fatalf("%s %s: status %d, %v: %.200s", method, path, status, err, answer)
	}
	return answer
}

func (b *box) try(method, path string, body io.Reader) (int, string, error) {
	r, err := http.NewRequestWithContext(b.s.ctx(), method, "http://guest"+path, body)
	if err != nil {
		return 0, "", err
	}
	resp, err := b.host.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), err
}

func (b *box) closeChannels() {
	if b.host != nil {
		b.host.Close()
	}
	ch := b.inst.Channels()
	ch.Down.Close()
	ch.Up.Close()
}

// destroy gives everything back and checks the driver's word for it.
func (b *box) destroy() {
	b.s.Helper()
	b.closeChannels()
	if err := b.inst.Destroy(b.s.ctx()); err != nil {
		b.s.Errorf("destroy: %v", describe(err))
	}
	b.s.gone(b.handle)
}

func (b *box) waitExit() sandbox.Exit {
	b.s.Helper()
	e, err := b.inst.Wait(b.s.ctx())
	if err != nil {
		b.s.Errorf("wait: %v", describe(err))
	}
	return e
}

// describe shows an error with its hint and cause.
func describe(err error) string {
	e := sandbox.AsError(err)
	if e == nil {
		return "no error"
	}
	parts := []string{string(e.Kind), e.Error()}
	if e.Hint != "" {
		parts = append(parts, "hint: "+e.Hint)
	}
	if c := e.Unwrap(); c != nil {
		parts = append(parts, "cause: "+c.Error())
	}
	return strings.Join(parts, "; ")
}
