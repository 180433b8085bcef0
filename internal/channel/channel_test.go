package channel_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/sandbox"
)

// pair returns the two ends of a stream socket pair.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return conns[0], conns[1]
}

// down returns a host whose guest serves h.
func down(t testing.TB, l channel.Limits, h http.Handler) *channel.Host {
	t.Helper()
	hc, gc := pair(t)
	served := make(chan error, 1)
	go func() { served <- channel.ServeGuest(t.Context(), gc, h) }()
	host, err := channel.DialHost(hc, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		if err := <-served; err != nil {
			t.Errorf("guest: %v", err)
		}
	})
	return host
}

func request(t testing.TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://guest"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func noise(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(b)
	return b
}

func TestDownBothWays(t *testing.T) {
	data := noise(64 << 20)
	host := down(t, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Write(data)
			return
		}
		h := sha256.New()
		io.Copy(h, r.Body)
		w.Write(h.Sum(nil))
	}))
	resp, err := host.RoundTrip(request(t, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("download: %d bytes, err %v, want %d equal bytes", len(got), err, len(data))
	}
	resp, err = host.RoundTrip(request(t, "PUT", "/", bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := io.ReadAll(resp.Body)
	if want := sha256.Sum256(data); !bytes.Equal(sum, want[:]) {
		t.Errorf("upload: digest %x, want %x", sum, want)
	}
	if n := host.Open(); n != 0 {
		t.Errorf("open streams = %d, want 0", n)
	}
}

func TestUp(t *testing.T) {
	hc, gc := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- channel.ServeHost(ctx, hc, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "echo.test:7" {
				w.WriteHeader(http.StatusForbidden)
				json.NewEncoder(w).Encode(channel.Refusal{Rule: "default-deny", Reason: "no rule allows it"})
				return
			}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			buf := make([]byte, 64<<10)
			for {
				n, err := r.Body.Read(buf)
				w.Write(buf[:n])
				w.(http.Flusher).Flush()
				if err != nil {
					return
				}
			}
		}))
	}()
	guest, err := channel.DialGuest(gc)
	if err != nil {
		t.Fatal(err)
	}

	_, err = guest.Connect(t.Context(), "example.com:443")
	if sandbox.KindOf(err) != sandbox.Denied || !strings.Contains(err.Error(), "default-deny") {
		t.Errorf("refused connect: %v, want denied by default-deny", err)
	}
	s, err := guest.Connect(t.Context(), "echo.test:7")
	if err != nil {
		t.Fatal(err)
	}
	data := noise(64 << 20)
	go func() {
		s.Write(data)
		s.CloseWrite()
	}()
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("echo: %d bytes, err %v, want %d equal bytes", len(got), err, len(data))
	}
	s.Close()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("host: %v", err)
	}
	<-guest.Done()
	guest.Close()
}

func TestUpServesConnectOnly(t *testing.T) {
	hc, gc := pair(t)
	done := make(chan error, 1)
	go func() {
		done <- channel.ServeHost(t.Context(), hc, channel.Limits{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("a request other than CONNECT reached the handler")
		}))
	}()
	// The guest's end of a down channel speaks as a server; a hostile guest
	// may speak as a client of anything, which DialHost does for this test.
	c, err := channel.DialHost(gc, channel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GET", "POST", "PUT", "OPTIONS"} {
		resp, err := c.RoundTrip(request(t, method, "/v1/hello", nil))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d, want 405", method, resp.StatusCode)
		}
		resp.Body.Close()
	}
	c.Close()
	if err := <-done; err != nil {
		t.Errorf("host: %v", err)
	}
}

func TestHostEndsWithGuest(t *testing.T) {
	hc, gc := pair(t)
	host, err := channel.DialHost(hc, channel.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	gc.Close()
	<-host.Done()
	_, err = host.RoundTrip(request(t, "GET", "/", nil))
	if sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("request on a dead channel: %v, want unavailable", err)
	}
	if host.Fault() != nil {
		t.Errorf("fault = %v, want none: the guest only left", host.Fault())
	}
	host.Close()
}

func TestRequestWaitsForAFreeStream(t *testing.T) {
	release := make(chan struct{})
	host := down(t, channel.Limits{Streams: 2}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-release
	}))
	var open []*http.Response
	for range 2 {
		resp, err := host.RoundTrip(request(t, "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := host.RoundTrip(request(t, "GET", "/", nil).WithContext(ctx))
	if sandbox.KindOf(err) != sandbox.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("third request: %v, want deadline exceeded", err)
	}
	close(release)
	for _, r := range open {
		r.Body.Close()
	}
	resp, err := host.RoundTrip(request(t, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}
