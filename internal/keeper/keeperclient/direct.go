package keeperclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/relay"
	"github.com/belljar-sh/belljar/sandbox"
)

// headBuffer holds the head of an answer, and what of its body has come with
// it.
const headBuffer = 4 << 10

// Direct sends a request to the guest over a connection of its own, which ends
// with the answer. Errors and answers are as of RoundTrip. The answer's body is
// a [*DirectBody] that a relay can take over. A request's body is sent by the
// relay when it is a [*relay.Inflow], else copied; it is never chunked, so its
// length must be known.
func (g *Guest) Direct(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	conn, err := sock.Dial(ctx, g.dir, wire.SocketName)
	if err != nil {
		closeBody(r)
		return nil, explain(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	resp, err := g.exchange(conn, r)
	if err != nil {
		stop()
		conn.Close()
		return nil, explain(ctx, err)
	}
	resp.Body = &DirectBody{conn: conn, br: resp.Body.(*answerBody).br, body: resp.Body, stop: stop, resp: resp}
	return resp, nil
}

// answerBody is the body as net/http reads it.
type answerBody struct {
	io.ReadCloser
	br *bufio.Reader
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// exchange sends r and reads the head of the answer, which may come before all
// of r has been sent: then the rest is not.
func (g *Guest) exchange(conn *net.UnixConn, r *http.Request) (*http.Response, error) {
	defer closeBody(r)
	head, err := g.head(r)
	if err != nil {
		return nil, err
	}
	in, inflow := r.Body.(*relay.Inflow)
	send := func() error { return in.Send(r.Context(), conn, head) }
	if !inflow {
		send = func() error { return sendBody(conn, head, r) }
	}
	sent := background(conn, send)
	br := bufio.NewReaderSize(conn, headBuffer)
	resp, err := http.ReadResponse(br, r)
	if serr := sent(); serr != nil && (err != nil || resp.StatusCode < 400) {
		err = serr
		if errors.Is(serr, io.ErrUnexpectedEOF) { // of the body; a keeper that dies gives EPIPE or a reset
			err = sandbox.Errorf(sandbox.Invalid, "the request's body ended before its %d bytes", r.ContentLength).
				WithField("Content-Length", strconv.FormatInt(r.ContentLength, 10)).WithHint("send all of it")
		}
	}
	if err != nil {
		return nil, err
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, br: br}
	return resp, nil
}

// head is the request line and header of r, with no word about how a body is
// cut up.
func (g *Guest) head(r *http.Request) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(r.Method + " " + g.base + r.URL.EscapedPath())
	if r.URL.RawQuery != "" {
		b.WriteString("?" + r.URL.RawQuery)
	}
	b.WriteString(" HTTP/1.1\r\nHost: keeper\r\nConnection: close\r\n")
	if r.Body != nil {
		if r.ContentLength < 0 {
			return nil, errors.New("a body of unknown length cannot be sent like this")
		}
		b.WriteString("Content-Length: " + strconv.FormatInt(r.ContentLength, 10) + "\r\n")
	}
	err := r.Header.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes(), err
}

// sendBody sends head and body, a small body in one write.
func sendBody(conn *net.UnixConn, head []byte, r *http.Request) error {
	left := r.ContentLength
	if left > 0 {
		first := min(left, headBuffer)
		head = append(head, make([]byte, first)...)
		if _, err := io.ReadFull(r.Body, head[int64(len(head))-first:]); err != nil {
			return err
		}
		left -= first
	}
	if _, err := conn.Write(head); err != nil || left <= 0 {
		return err
	}
	_, err := io.CopyN(struct{ io.Writer }{conn}, r.Body, left)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// background sends while the answer is awaited. The function that it returns
// ends what is still being sent and tells how it went.
func background(conn *net.UnixConn, send func() error) func() error {
	done := make(chan error, 1)
	go func() {
		err := send()
		switch {
		case err == nil:
		case relay.HungUp(err):
			// The keeper wants no more of it, and has said why.
			conn.SetReadDeadline(time.Now().Add(lateAnswer))
		default: // the rest will never come
			conn.Close()
		}
		done <- err
	}()
	return func() error {
		select {
		case err := <-done:
			return err
		default:
		}
		conn.SetWriteDeadline(time.Unix(1, 0))
		return <-done
	}
}

// lateAnswer is how long an answer is waited for after a body could not be
// sent to its end.
const lateAnswer = 2 * time.Second

// DirectBody is the body of an answer to Direct.
type DirectBody struct {
	conn *net.UnixConn
	br   *bufio.Reader
	body io.ReadCloser
	resp *http.Response
	stop func() bool
	once sync.Once
}

// Read reads the body.
func (b *DirectBody) Read(p []byte) (int, error) { return b.body.Read(p) }

// Close ends the connection.
func (b *DirectBody) Close() error {
	b.once.Do(func() {
		b.stop()
		b.conn.Close()
	})
	return nil
}

// Source returns where the body comes from: what has come already, the
// connection, and the length of both together, -1 for "up to the end". ok is
// false when the body must be read instead. After Source nobody calls Read.
func (b *DirectBody) Source() (s relay.Source, ok bool) {
	if len(b.resp.TransferEncoding) > 0 {
		return s, false
	}
	got, err := b.br.Peek(b.br.Buffered())
	if err != nil {
		return s, false
	}
	return relay.Source{Conn: b.conn, Ahead: bytes.Clone(got), Length: b.resp.ContentLength}, true
}
