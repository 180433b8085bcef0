package keeper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/drivertest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper"
	"github.com/belljar-sh/belljar/internal/keeper/keeperclient"
	"github.com/belljar-sh/belljar/sandbox"
)

const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// hostileGuest answers hello as an honest guest does and then attacks.
type hostileGuest struct {
	down, up *http2.Framer
	downConn net.Conn
	upConn   net.Conn
	hello    uint32 // stream of the hello
}

func encode(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

func newHostile(down, up net.Conn) (*hostileGuest, error) {
	h := &hostileGuest{down: http2.NewFramer(down, down), up: http2.NewFramer(up, up), downConn: down, upConn: up}
	h.down.AllowIllegalWrites, h.up.AllowIllegalWrites = true, true
	if _, err := io.ReadFull(down, make([]byte, len(clientPreface))); err != nil {
		return nil, err
	}
	h.down.WriteSettings()
	for h.hello == 0 {
		f, err := h.down.ReadFrame()
		if err != nil {
			return nil, err
		}
		if hf, ok := f.(*http2.HeadersFrame); ok {
			h.hello = hf.StreamID
		}
	}
	reply, err := json.Marshal(guest.HelloReply{Protocol: guest.Protocol, Build: build.ID()})
	if err != nil {
		return nil, err
	}
	h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.hello, EndHeaders: true, BlockFragment: encode(":status", "200")})
	h.down.WriteData(h.hello, true, reply)
	go io.Copy(io.Discard, down)
	return h, nil
}

func (h *hostileGuest) openUp(stream uint32) error {
	return h.up.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, EndHeaders: true,
		BlockFragment: encode(":method", "CONNECT", ":authority", "example.com:443"),
	})
}

func (h *hostileGuest) beginUp() {
	io.WriteString(h.upConn, clientPreface)
	h.up.WriteSettings()
}

// attacks go on until the host ends them.
var attacks = map[string]func(h *hostileGuest){
	"garbage": func(h *hostileGuest) { h.downConn.Write(bytes.Repeat([]byte("garbage"), 1000)) },
	"pings": func(h *hostileGuest) {
		for h.down.WritePing(false, [8]byte{}) == nil {
		}
	},
	"resets": func(h *hostileGuest) {
		for h.down.WriteRSTStream(h.hello, http2.ErrCodeCancel) == nil {
		}
	},
	"settings": func(h *hostileGuest) {
		for h.down.WriteSettings() == nil {
		}
	},
	"headers": func(h *hostileGuest) {
		for h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.hello, EndHeaders: true, BlockFragment: encode(":status", "200")}) == nil {
		}
	},
	"endless headers": func(h *hostileGuest) {
		h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: h.hello, BlockFragment: encode(":status", "200")})
		for h.down.WriteContinuation(h.hello, false, encode("x", "y")) == nil {
		}
	},
	"up: not HTTP/2": func(h *hostileGuest) { io.WriteString(h.upConn, "GET / HTTP/1.1\r\n\r\n") },
	"up: streams": func(h *hostileGuest) {
		h.beginUp()
		go io.Copy(io.Discard, h.upConn)
		for n := uint32(1); h.openUp(n) == nil; n += 2 {
		}
	},
	"up: rapid reset": func(h *hostileGuest) {
		h.beginUp()
		go io.Copy(io.Discard, h.upConn)
		for n := uint32(1); h.openUp(n) == nil && h.up.WriteRSTStream(n, http2.ErrCodeCancel) == nil; n += 2 {
		}
	},
	"up: pings": func(h *hostileGuest) {
		h.beginUp()
		go io.Copy(io.Discard, h.upConn)
		for h.up.WritePing(false, [8]byte{}) == nil {
		}
	},
}

// nuisances are no breach; they must harm nobody while they last.
var nuisances = map[string]func(h *hostileGuest){
	"up: streams and no reader": func(h *hostileGuest) {
		h.beginUp()
		for n := uint32(1); n < 400 && h.openUp(n) == nil; n += 2 {
		}
	},
	"window updates": func(h *hostileGuest) {
		for h.down.WriteWindowUpdate(h.hello, 1) == nil {
		}
	},
}

// siege is a keeper with an honest neighbour, in a process of its own, and
// sandboxes that attack.
type siege struct {
	*running
	neighbour sandbox.ID
	next      chan func(h *hostileGuest)
}

const honest = sandbox.Process

func newSiege(t *testing.T) *siege {
	s := &siege{next: make(chan func(h *hostileGuest))}
	outside := t.TempDir()
	hostile := fake.New(fake.Options{Outside: outside, Serve: func(ctx context.Context, down, up net.Conn) int {
		h, err := newHostile(down, up)
		if err != nil {
			return 1
		}
		(<-s.next)(h)
		<-ctx.Done()
		return 0
	}})
	dir := keeperDir(t)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s.running = &running{dir: dir, outside: outside, driver: hostile, stop: cancel, ended: make(chan error, 1)}
	go func() {
		s.ended <- keeper.Run(ctx, keeper.Options{
			Dir: dir, Ready: func() { close(ready) },
			Drivers: []driver.Driver{hostile, fake.New(fake.Options{Outside: outside, Boundary: honest})},
		})
	}()
	<-ready
	s.Client = keeperclient.New(dir)
	t.Cleanup(func() {
		s.Close()
		s.end(t)
	})
	s.neighbour = sandbox.NewID()
	req := request(s.neighbour)
	req.Boundary, req.Guest = honest, drivertest.BuildGuest(t)
	if _, err := s.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return s
}

// execs returns the latencies of n execs in the neighbour, sorted.
func (s *siege) execs(t *testing.T, n int) []time.Duration {
	t.Helper()
	var out []time.Duration
	for range n {
		began := time.Now()
		if resp, body := s.ask(t, s.neighbour, 7, "POST", "/v1/test/exec", nil); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("exec: %d %s", resp.StatusCode, body)
		}
		out = append(out, time.Since(began))
	}
	slices.Sort(out)
	return out
}

func p99(d []time.Duration) time.Duration { return d[len(d)*99/100] }

// TestHostileGuests has one sandbox after the other attack: each dies for it,
// alone.
func TestHostileGuests(t *testing.T) {
	s := newSiege(t)
	idle := s.execs(t, 100)
	var worst time.Duration
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			id := s.attack(t, attack)
			under := s.execs(t, 20)
			worst = max(worst, under[len(under)-1])
			status, err := s.Wait(t.Context(), id)
			if err != nil || status.Running || status.Fault == "" {
				t.Errorf("status %+v, %v, want it dead by a fault", status, err)
			}
			t.Logf("fault: %s", status.Fault)
			if _, err := s.Delete(t.Context(), id); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
	}
	if st, err := s.Status(t.Context(), s.neighbour); err != nil || !st.Running {
		t.Errorf("the neighbour: %+v, %v", st, err)
	}
	t.Logf("neighbour's exec: idle median %v, p99 %v; worst under attack %v", idle[len(idle)/2], p99(idle), worst)
}

func (s *siege) attack(t *testing.T, attack func(h *hostileGuest)) sandbox.ID {
	t.Helper()
	id := s.create(t)
	s.next <- attack
	return id
}

// TestNeighbourUnderSiege measures the neighbour while several sandboxes make
// as much trouble as they may. Attackers and keeper share the machine's
// processors here, so the bound is generous; with limits in force it is twice
// the idle p99.
func TestNeighbourUnderSiege(t *testing.T) {
	s := newSiege(t)
	idle := p99(s.execs(t, 200))
	for name, n := range nuisances {
		t.Run(name, func(t *testing.T) {
			id := s.attack(t, n)
			under := p99(s.execs(t, 200))
			t.Logf("p99: idle %v, under siege %v (%.1f times)", idle, under, float64(under)/float64(idle))
			if under > 10*idle+200*time.Millisecond {
				t.Errorf("p99 %v under siege, %v idle", under, idle)
			}
			if _, err := s.Delete(t.Context(), id); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
	}
}

// TestUnreadAnswersAreBounded has a guest send answers that nobody reads and watches
// the keeper's memory.
func TestUnreadAnswersAreBounded(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	before := rss(t)
	for range 100 {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://guest/v1/test/bytes?zero=1&n=1073741824", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := k.Guest(id, 7).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last int64 = -1
	for calm := 0; calm < 4; {
		<-tick.C
		st, err := k.Stats(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if st.ReadBytes == last {
			calm++
		} else {
			last, calm = st.ReadBytes, 0
		}
	}
	// Client and keeper are one process here: the client buffers 1 MiB for
	// each of its streams, the keeper 16 MiB for the sandbox.
	if grown := rss(t) - before; grown > 400<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	} else {
		t.Logf("memory grew by %d MiB for 100 answers that nobody reads", grown>>20)
	}
}

func rss(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	f := bytes.Fields(b)
	var pages int64
	if err := json.Unmarshal(f[1], &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
