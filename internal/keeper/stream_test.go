package keeper_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestEarlyAnswer has a guest answer without reading an upload that never
// ends.
func TestEarlyAnswer(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	for range 20 {
		resp, _ := k.ask(t, id, 7, "PUT", "/v1/nothing", io.NopCloser(zeros{}))
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("status %d, want 404", resp.StatusCode)
		}
	}
	if resp, _ := k.ask(t, id, 7, "GET", "/v1/ping", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("ping afterwards: %d", resp.StatusCode)
	}
}

// TestAnswerBeforeTheEnd has a guest answer when little of a body is left: what
// is left must not be taken for the next request on the connection.
func TestAnswerBeforeTheEnd(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	for n := range 1500 {
		body := io.NopCloser(io.LimitReader(zeros{}, int64(n*97)))
		if resp, got := k.ask(t, id, 7, "PUT", "/v1/nothing", body); resp.StatusCode != http.StatusNotFound {
			t.Fatalf("round %d: status %d, want 404: %s", n, resp.StatusCode, got)
		}
		if resp, got := k.ask(t, id, 7, "GET", "/v1/ping", nil); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("round %d: ping afterwards: %d: %s", n, resp.StatusCode, got)
		}
	}
}

// TestCallerGoesAway cancels requests in the middle: the guest notices, and no
// stream of the channel stays taken.
func TestCallerGoesAway(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	for range 300 { // more than a channel has streams
		ctx, cancel := context.WithCancel(t.Context())
		r := guestRequest(t, "GET", "/v1/test/bytes?zero=1&n=1073741824", nil).WithContext(ctx)
		resp, err := k.Guest(id, 7).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		cancel()
		resp.Body.Close()
	}
	if _, got := k.ask(t, id, 7, "PUT", "/v1/test/drop", io.NopCloser(io.LimitReader(zeros{}, 1<<20))); got != "1048576" {
		t.Errorf("upload afterwards: %s", got)
	}
	if st, err := k.Status(t.Context(), id); err != nil || !st.Running {
		t.Errorf("status %+v, %v", st, err)
	}
}

// TestGuestDiesInAnswer has the guest end in the middle of an answer: it must
// not look complete.
func TestGuestDiesInAnswer(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	resp, err := k.Guest(id, 7).RoundTrip(guestRequest(t, "GET", "/v1/test/bytes?zero=1&n=1073741824", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("the answer ended well after %d bytes more", n)
	}
}

// TestGuestThatIsSilent never answers hello; the create ends in time and
// leaves nothing.
func TestGuestThatIsSilent(t *testing.T) {
	k := start(t, keeper.Options{HelloTimeout: 50 * time.Millisecond}, fake.Options{
		Serve: func(ctx context.Context, down, up net.Conn) int {
			<-ctx.Done()
			return 0
		},
	})
	_, err := k.Create(t.Context(), request(sandbox.NewID()))
	if sandbox.KindOf(err) != sandbox.DeadlineExceeded {
		t.Errorf("create: %v, want deadline exceeded", err)
	}
}

// TestGuestThatLies answers hello with what no guest of ours says.
func TestGuestThatLies(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
		want   sandbox.Kind
	}{
		"not JSON":      {200, "hello yourself", sandbox.Internal},
		"other build":   {200, `{"protocol":1,"build":"0.0.0+other"}`, sandbox.Conflict},
		"other version": {200, `{"protocol":99}`, sandbox.Conflict},
		"unknown kind":  {500, `{"error":{"kind":"mischief","message":"boo"}}`, sandbox.Internal},
		"long reason":   {404, `{"error":{"kind":"not_found","message":"` + strings.Repeat("x", 1<<20) + `"}}`, sandbox.NotFound},
		"no reason":     {503, "", sandbox.Internal},
		"huge":          {200, string(make([]byte, 4<<20)), sandbox.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			k := start(t, keeper.Options{}, fake.Options{Serve: liar(tc.status, tc.body)})
			_, err := k.Create(t.Context(), request(sandbox.NewID()))
			if sandbox.KindOf(err) != tc.want {
				t.Errorf("create: %v (%s), want %s", err, sandbox.KindOf(err), tc.want)
			}
			if n := len(err.Error()); n > 4<<10 {
				t.Errorf("create: an error of %d bytes", n)
			}
		})
	}
}

// TestLongDirectory serves from a directory whose name does not fit into a
// socket address.
func TestLongDirectory(t *testing.T) {
	long := longDir(t)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- keeper.Run(ctx, keeper.Options{Dir: long, Ready: func() { close(ready) }}) }()
	<-ready
	c := keeperclient.New(long)
	if _, err := c.Hello(t.Context()); err != nil {
		t.Errorf("hello: %v", err)
	}
	c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("keeper: %v", err)
	}
}

func liar(status int, body string) func(context.Context, net.Conn, net.Conn) int {
	return func(ctx context.Context, down, up net.Conn) int {
		channel.ServeGuest(ctx, down, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
		return 0
	}
}

func longDir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestGuestThatDoesNotRest: a sandbox whose guest does not come to rest is not
// saved, and goes on under the generation of the hello.
func TestGuestThatDoesNotRest(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// The test guest knows no such route.
	_, err := k.Checkpoint(t.Context(), id, wire.Checkpoint{Dir: dir, Hello: guest.Hello{Generation: 8}})
	if err == nil {
		t.Fatal("a sandbox that is not at rest was saved")
	}
	if resp, got := k.ask(t, id, 8, "GET", "/v1/ping", nil); resp.StatusCode != http.StatusNoContent {
		t.Errorf("ping afterwards: %d: %s (after %v)", resp.StatusCode, got, err)
	}
	if resp, _ := k.ask(t, id, 7, "GET", "/v1/ping", nil); resp.StatusCode != http.StatusConflict {
		t.Errorf("ping of the old generation: %d", resp.StatusCode)
	}
}

// TestKeeperGoesInADirectRequest: that a keeper broke off is not blamed on the
// request, whose sender would not try again then.
func TestKeeperGoesInADirectRequest(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	r := guestRequest(t, "POST", "/v1/test/echo", strings.NewReader("x"))
	resp, err := k.Guest(id, 7).Direct(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	// A listener that takes a request and goes.
	dir := keeperDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, wire.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, 4096))
		c.Close()
	}()
	gone := keeperclient.New(dir)
	defer gone.Close()
	_, err = gone.Guest(id, 7).Direct(guestRequest(t, "POST", "/v1/processes", strings.NewReader("{}")))
	if sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("%+v, want unavailable", sandbox.AsError(err))
	}
	_, err = k.Guest(id, 7).Direct(func() *http.Request {
		r := guestRequest(t, "PUT", "/v1/test/drop", io.LimitReader(zeros{}, 1<<20))
		r.ContentLength = 2 << 20
		return r
	}())
	if sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("a body that ends early: %+v, want invalid", sandbox.AsError(err))
	}
}
