package httpapi

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/relay"
	"github.com/belljar-sh/belljar/sandbox"
)

// relayLeast is the body from which on moving it pays.
const relayLeast = 256 << 10

// movable reports whether the bytes of r and of its answer lie in a unix socket
// that can be taken over.
func movable(r *http.Request) bool {
	_, unix := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return unix && r.ProtoMajor == 1 && r.Method != http.MethodHead
}

// taken is a client's connection that net/http knows no more. It ends with the
// answer.
type taken struct {
	conn   *net.UnixConn
	ahead  []byte // of what the client sent, read already
	header http.Header
}

// takeOver takes the connection of a [movable] request.
func takeOver(w http.ResponseWriter) (*taken, error) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the connection cannot be taken over").WithCause(err)
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "the connection is no unix socket, as its address said")
	}
	ahead, err := buf.Reader.Peek(buf.Reader.Buffered())
	if err != nil {
		conn.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "what has been read cannot be taken over").WithCause(err)
	}
	return &taken{conn: u, ahead: bytes.Clone(ahead), header: w.Header()}, nil
}

// head is the head of an answer; length -1: the end of the connection is the
// end of the body.
func (t *taken) head(status int, length int64) []byte {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\r\n")
	t.header.Set("Connection", "close")
	if length >= 0 {
		t.header.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	_ = t.header.Write(&b) // a buffer takes all
	b.WriteString("\r\n")
	return b.Bytes()
}

// relay takes the client's connection over for an answer that send moves to it.
// Whatever happens then ends the connection: a client never takes a
// part for the whole.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, send func(*taken) error) error {
	t, err := takeOver(w)
	if err != nil {
		return err
	}
	defer t.conn.Close()
	if err := send(t); err != nil {
		s.o.Log.Debug("an answer ended early", "path", r.URL.Path, "err", err)
	}
	return nil
}

// inflow takes the client's connection over for a large body of known length.
// taken is nil when the body is to be read as usual.
func inflow(w http.ResponseWriter, r *http.Request) (*relay.Inflow, *taken, error) {
	if !movable(r) || r.ContentLength < relayLeast || r.Header.Get("Expect") != "" {
		return nil, nil, nil
	}
	t, err := takeOver(w)
	if err != nil {
		return nil, nil, err
	}
	return &relay.Inflow{Source: relay.Source{Conn: t.conn, Ahead: t.ahead, Length: r.ContentLength}}, t, nil
}

// answer returns a writer of a small answer.
func (t *taken) answer() http.ResponseWriter { return &takenAnswer{taken: t} }

// takenAnswer writes an answer that is short and written at once.
type takenAnswer struct {
	*taken
	begun bool
}

// Header is that of the answer.
func (a *takenAnswer) Header() http.Header { return a.header }

// WriteHeader writes the head; what is written after it ends with the
// connection.
func (a *takenAnswer) WriteHeader(status int) {
	if !a.begun {
		a.begun = true
		_, _ = a.conn.Write(a.head(status, -1)) // the client may have gone
	}
}

// Write writes the body.
func (a *takenAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.conn.Write(p)
}

// end closes the connection. A client that is still sending what was refused
// gets the time to see why.
func (t *taken) end() {
	_ = t.conn.CloseWrite()
	_ = t.conn.SetReadDeadline(time.Now().Add(lateTime))
	_, _ = io.CopyN(io.Discard, t.conn, lateBytes)
	t.conn.Close()
}

// What a client may still send after the answer.
const (
	lateTime  = 500 * time.Millisecond
	lateBytes = 1 << 20
)
