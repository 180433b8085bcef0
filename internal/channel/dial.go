package channel

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"

	"golang.org/x/net/http2"

	"github.com/belljar-sh/belljar/sandbox"
)

// Guest is the guest's end of an up channel. It is safe for concurrent use.
type Guest struct {
	conn *bufConn
	cc   *http2.ClientConn
}

// DialGuest starts HTTP/2 as a client on conn, the guest's end of an up
// channel, which it owns from then on.
func DialGuest(conn net.Conn) (*Guest, error) {
	b, cc, err := dial(newConn(conn, &guestBuffers), guestLimits())
	if err != nil {
		return nil, err
	}
	return &Guest{conn: b, cc: cc}, nil
}

// Close ends the channel and every connection on it.
func (g *Guest) Close() error {
	err := g.conn.Close()
	g.cc.Close()
	return err
}

// Done is closed when the channel has ended.
func (g *Guest) Done() <-chan struct{} { return g.conn.done }

// Refusal is the host's answer to a CONNECT that it does not allow.
type Refusal struct {
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
}

// Connect asks the host for a connection to dest, "host:port". ctx bounds the
// asking only. A refusal is a [sandbox.Denied] error that names the rule.
func (g *Guest) Connect(ctx context.Context, dest string) (*Stream, error) {
	pr, pw := io.Pipe()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	r := (&http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Scheme: "http", Host: dest},
		Host:   dest,
		Header: http.Header{},
		Body:   pr,
	}).WithContext(life)
	resp, err := g.cc.RoundTrip(r)
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			return nil, ctxError(ctx)
		}
		return nil, sandbox.Errorf(sandbox.Unavailable, "the host does not answer: %w", err)
	}
	if !stop() {
		resp.Body.Close()
		cancel()
		return nil, ctxError(ctx)
	}
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer resp.Body.Close()
		return nil, refused(resp, dest)
	}
	return &Stream{r: resp.Body, w: pw, cancel: cancel}, nil
}

func refused(resp *http.Response, dest string) error {
	var ref Refusal
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if json.Unmarshal(body, &ref) != nil || ref.Rule == "" {
		return sandbox.Errorf(sandbox.Unavailable, "the host answered with status %d", resp.StatusCode).WithField("destination", dest)
	}
	return sandbox.Errorf(sandbox.Denied, "%s (rule %s)", ref.Reason, ref.Rule).WithField("destination", dest)
}

// Stream is one allowed connection. Reads and writes may overlap.
type Stream struct {
	r      io.ReadCloser
	w      *io.PipeWriter
	cancel context.CancelFunc
	once   sync.Once
}

// Read reads what the destination sent.
func (s *Stream) Read(p []byte) (int, error) { return s.r.Read(p) }

// Write sends to the destination.
func (s *Stream) Write(p []byte) (int, error) { return s.w.Write(p) }

// CloseWrite ends the sending half.
func (s *Stream) CloseWrite() error { return s.w.Close() }

// Close ends both halves.
func (s *Stream) Close() error {
	s.once.Do(func() {
		s.w.Close()
		s.r.Close()
		s.cancel()
	})
	return nil
}
