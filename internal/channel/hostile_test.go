package channel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/sandbox"
)

// attack is a guest that has taken hold of its end of a channel.
type attack struct {
	net.Conn
	t *testing.T
	*http2.Framer
	hpack bytes.Buffer
	enc   *hpack.Encoder
}

func newAttack(t *testing.T, c net.Conn) *attack {
	a := &attack{Conn: c, t: t, Framer: http2.NewFramer(c, c)}
	a.AllowIllegalWrites = true
	a.enc = hpack.NewEncoder(&a.hpack)
	return a
}

// block encodes a header block.
func (a *attack) block(fields ...string) []byte {
	a.hpack.Reset()
	for i := 0; i < len(fields); i += 2 {
		a.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return slices.Clone(a.hpack.Bytes())
}

// drain reads what the host sends, so that it is never the host's writing that
// fails.
func (a *attack) drain() { go io.Copy(io.Discard, a.Conn) }

// request waits for the headers of a request and returns its stream.
func (a *attack) request() uint32 {
	if _, err := io.ReadFull(a.Conn, make([]byte, len(clientPreface))); err != nil {
		a.t.Error(err)
		return 1
	}
	for {
		f, err := a.ReadFrame()
		if err != nil {
			a.t.Error(err)
			return 1
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			return h.StreamID
		}
	}
}

// hostileDown runs an attack on a down channel while a request is open, and
// returns how the channel ended.
func hostileDown(t *testing.T, l channel.Limits, do func(a *attack, stream uint32)) (fault, answer error) {
	t.Helper()
	hc, gc := pair(t)
	host, err := channel.DialHost(hc, l)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	a := newAttack(t, gc)
	defer gc.Close()
	done := make(chan error, 1)
	go func() {
		resp, err := host.RoundTrip(request(t, "GET", "/", nil))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		done <- err
	}()
	a.WriteSettings()
	stream := a.request()
	a.drain()
	do(a, stream)
	select {
	case <-host.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the channel lives on")
	}
	return host.Fault(), <-done
}

func wantFault(t *testing.T, err error, rule string) {
	t.Helper()
	var f *channel.Fault
	if !errors.As(err, &f) || f.Rule != rule {
		t.Errorf("fault %v, want %s", err, rule)
	}
}

func TestHostileDown(t *testing.T) {
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			fault, answer := hostileDown(t, channel.Limits{}, func(a *attack, _ uint32) { a.Write(tc.bytes) })
			// HTTP/2 may object before the inspector has seen enough.
			var f *channel.Fault
			if !errors.As(fault, &f) || f.Rule != tc.rule && f.Rule != "protocol" {
				t.Errorf("fault %v, want %s", fault, tc.rule)
			}
			if answer == nil {
				t.Error("the open request ended well")
			}
		})
	}
}

// TestHostileDownHTTP2 breaks rules that only HTTP/2 itself knows.
func TestHostileDownHTTP2(t *testing.T) {
	for name, do := range map[string]func(a *attack, stream uint32){
		"unknown huffman": func(a *attack, s uint32) { a.Write(raw(1, 4, s, bytes.Repeat([]byte{0xff}, 100))) },
		"data on a stream that never was": func(a *attack, s uint32) {
			a.WriteData(s+1000, false, []byte("x"))
		},
		"more than the window": func(a *attack, s uint32) {
			a.Write(raw(1, 4, s, a.block(":status", "200")))
			for range 80 {
				a.WriteData(s, false, make([]byte, 256<<10))
			}
		},
		"window overflow": func(a *attack, _ uint32) {
			for range 4 {
				a.WriteWindowUpdate(0, 1<<31-1)
			}
		},
		"compression bomb": func(a *attack, s uint32) {
			field := a.block("x", string(make([]byte, 3000)))
			a.Write(raw(1, 4, s, joined(a.block(":status", "200"), field, times(3000, []byte{0xbe}))))
			a.WriteGoAway(0, http2.ErrCodeNo, nil)
			a.Conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			hc, gc := pair(t)
			host, err := channel.DialHost(hc, channel.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			defer gc.Close()
			a := newAttack(t, gc)
			done := make(chan error, 1)
			go func() {
				resp, err := host.RoundTrip(request(t, "GET", "/", nil))
				if err == nil {
					n := 0
					for _, v := range resp.Header {
						n += len(v)
					}
					if n > 100 {
						t.Errorf("%d headers passed", n)
					}
					<-host.Done() // a reader that does not read
					resp.Body.Close()
				}
				done <- err
			}()
			a.WriteSettings()
			stream := a.request()
			a.drain()
			do(a, stream)
			select {
			case <-host.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the channel lives on")
			}
			<-done
		})
	}
}

func TestHalfFrames(t *testing.T) {
	l := channel.Limits{FrameTime: 50 * time.Millisecond}
	for name, b := range map[string][]byte{
		"half a head":          {0, 0},
		"a head without body":  raw(0, 0, 1, make([]byte, 100))[:20],
		"a block without end":  raw(1, 0, 1, []byte{0x88}),
		"a large frame's half": raw(0, 0, 1, make([]byte, 200<<10))[:100<<10],
	} {
		t.Run(name, func(t *testing.T) {
			fault, _ := hostileDown(t, l, func(a *attack, stream uint32) {
				b := slices.Clone(b)
				if len(b) > 8 {
					b[8] = byte(stream)
				}
				a.Write(b)
			})
			wantFault(t, fault, "half-frame")
		})
	}
}

// TestTrickle sends a frame byte by byte: each byte comes in time, the frame
// does not.
func TestTrickle(t *testing.T) {
	fault, _ := hostileDown(t, channel.Limits{FrameTime: 100 * time.Millisecond}, func(a *attack, stream uint32) {
		go func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			a.Write(raw(0, 0, stream, make([]byte, 1<<16))[:9])
			for range tick.C {
				if _, err := a.Write([]byte{0}); err != nil {
					return
				}
			}
		}()
	})
	wantFault(t, fault, "half-frame")
}

// TestGuestThatLeavesIsNoFault tells the end of a guest from a breach.
func TestGuestThatLeavesIsNoFault(t *testing.T) {
	fault, answer := hostileDown(t, channel.Limits{}, func(a *attack, _ uint32) { a.Conn.Close() })
	if fault != nil || sandbox.KindOf(answer) != sandbox.Unavailable {
		t.Errorf("fault %v, answer %v, want none and unavailable", fault, answer)
	}
}

// hostileUp runs an attack on an up channel and returns how it was judged.
func hostileUp(t *testing.T, l channel.Limits, h http.Handler, do func(a *attack)) error {
	t.Helper()
	hc, gc := pair(t)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { served <- channel.ServeHost(ctx, hc, l, h) }()
	a := newAttack(t, gc)
	defer gc.Close()
	a.drain()
	do(a)
	select {
	case err := <-served:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the channel lives on")
		return nil
	}
}

func refuse(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }

func TestHostileUp(t *testing.T) {
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			err := hostileUp(t, channel.Limits{}, http.HandlerFunc(refuse), func(a *attack) {
				a.Write(joined([]byte(clientPreface), settings(), tc.bytes))
			})
			var f *channel.Fault // of either, as above
			if !errors.As(err, &f) || f.Rule != tc.rule && f.Rule != "protocol" {
				t.Errorf("fault %v, want %s", err, tc.rule)
			}
		})
	}
}

// open writes the CONNECT of a stream.
func (a *attack) open(stream uint32) {
	a.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, EndHeaders: true,
		BlockFragment: a.block(":method", "CONNECT", ":authority", "example.com:443"),
	})
}

// TestTenThousandStreams opens streams without reading an answer or closing
// one.
func TestTenThousandStreams(t *testing.T) {
	hold := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	err := hostileUp(t, channel.Limits{}, hold, func(a *attack) {
		a.Write(joined([]byte(clientPreface), settings(), raw(4, 1, 0, nil)))
		for n := range uint32(10_000) {
			a.open(2*n + 1)
		}
	})
	var f *channel.Fault
	if !errors.As(err, &f) {
		t.Errorf("ended with %v, want a fault", err)
	}
}

// TestRapidReset opens and resets streams as fast as it can.
func TestRapidReset(t *testing.T) {
	err := hostileUp(t, channel.Limits{}, http.HandlerFunc(refuse), func(a *attack) {
		a.Write(joined([]byte(clientPreface), settings()))
		for n := range uint32(50_000) {
			a.open(2*n + 1)
			if a.WriteRSTStream(2*n+1, http2.ErrCodeCancel) != nil {
				return
			}
		}
	})
	var f *channel.Fault
	if !errors.As(err, &f) {
		t.Errorf("ended with %v, want a fault", err)
	}
}

// TestUnreadAnswers has a guest send ten thousand times what nobody reads: the
// host holds no more than its budget.
func TestUnreadAnswers(t *testing.T) {
	l := channel.DefaultLimits()
	l.Traffic = new(channel.Traffic)
	host := down(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 64<<10)
		for {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}))
	for range 200 {
		resp, err := host.RoundTrip(request(t, "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
	}
	// Wait until the guest can send no more.
	before, calm := int64(-1), 0
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for calm < 5 {
		<-tick.C
		if now := l.Traffic.Read.Load(); now == before {
			calm++
		} else {
			before, calm = now, 0
		}
	}
	if before > int64(l.BufferedBytes)+1<<20 {
		t.Errorf("the host took %d bytes that nobody reads, its budget is %d", before, l.BufferedBytes)
	}
}

// TestUnreadAnswersMakeRoom leaves more answers unread than the budget holds:
// another request is answered all the same, at the cost of the oldest.
func TestUnreadAnswersMakeRoom(t *testing.T) {
	host := down(t, channel.Limits{ReadTime: 50 * time.Millisecond}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			io.WriteString(w, "answer")
			return
		}
		buf := make([]byte, 64<<10)
		for {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}))
	var left []*http.Response
	for range 40 {
		resp, err := host.RoundTrip(request(t, "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		left = append(left, resp)
	}
	<-time.After(100 * time.Millisecond) // they count as left from then on
	resp, err := host.RoundTrip(request(t, "GET", "/small", nil))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := left[0].Body.Read(make([]byte, 1)); sandbox.KindOf(err) != sandbox.Unavailable {
		t.Errorf("the oldest: %v, want unavailable", err)
	}
	if _, err := left[39].Body.Read(make([]byte, 1)); err != nil {
		t.Errorf("the youngest: %v", err)
	}
}

// FuzzHost gives the host's ends of both channels whatever comes.
func FuzzHost(f *testing.F) {
	for _, tc := range hostile {
		f.Add(joined(settings(), tc.bytes[:min(len(tc.bytes), 2048)]), false)
		f.Add(joined([]byte(clientPreface), settings(), tc.bytes[:min(len(tc.bytes), 2048)]), true)
	}
	a := newAttack(nil, nil)
	f.Add(joined(settings(), raw(4, 1, 0, nil), raw(1, 4, 1, a.block(":status", "200")), raw(0, 1, 1, []byte("hi"))), false)
	f.Add(joined([]byte(clientPreface), settings(), raw(1, 4, 1, a.block(":method", "CONNECT", ":authority", "x:1"))), true)
	f.Fuzz(func(t *testing.T, b []byte, up bool) {
		hc, gc := net.Pipe()
		go io.Copy(io.Discard, gc)
		l := channel.Limits{FrameTime: time.Second, WriteTime: time.Second}
		if up {
			done := make(chan error, 1)
			go func() { done <- channel.ServeHost(t.Context(), hc, l, http.HandlerFunc(refuse)) }()
			gc.Write(b)
			gc.Close()
			<-done
			return
		}
		host, err := channel.DialHost(hc, l)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := host.RoundTrip(request(t, "GET", "/", nil))
			if err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		gc.Write(b)
		gc.Close()
		<-done
		<-host.Done()
		host.Close()
	})
}
