package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/gen/e2b/filesystem/filesystemconnect"
	"github.com/belljar-sh/belljar/internal/gen/e2b/process/processconnect"
	"github.com/belljar-sh/belljar/internal/testenv"
)

// wire is one sandbox as a client of the E2B wire reaches it.
type wire struct {
	*box
	id    string
	http  *http.Client
	procs processconnect.ProcessClient
	files filesystemconnect.FilesystemClient
}

// base is where requests go; the transport knows the socket.
const base = "http://daemon"

// routed sends every request to the daemon's socket, for one sandbox.
type routed struct {
	id string
	rt http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r routed) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("E2b-Sandbox-Id", r.id)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	return r.rt.RoundTrip(req)
}

func daemonTransport(t testing.TB, e *testenv.Env) *http.Transport {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(e.Run, "daemon.sock"))
		},
		DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// sandboxID asks for the ID of a sandbox by name.
func sandboxID(t testing.TB, e *testenv.Env, name string) string {
	t.Helper()
	var sb struct{ ID string }
	var list []json.RawMessage
	out := want(t, e.Belljar("inspect", name, "-o", "json"), 0).Stdout
	if json.Unmarshal([]byte(out), &list) == nil && len(list) == 1 {
		out = string(list[0])
	}
	decode(t, out, &sb)
	if sb.ID == "" {
		t.Fatalf("no ID in %s", clip(out))
	}
	return sb.ID
}

// reach returns the clients for a sandbox.
func reach(t testing.TB, b *box, opts ...connect.ClientOption) *wire {
	t.Helper()
	id := sandboxID(t, b.Env, b.name)
	c := &http.Client{Transport: routed{id, daemonTransport(t, b.Env)}}
	return &wire{
		box: b, id: id, http: c,
		procs: processconnect.NewProcessClient(c, base, opts...),
		files: filesystemconnect.NewFilesystemClient(c, base, opts...),
	}
}

// plain is a client that adds no headers.
func (w *wire) plain(t testing.TB) *http.Client {
	return &http.Client{Transport: daemonTransport(t, w.Env)}
}

// codecs runs f with clients of either encoding, on one sandbox.
func codecs(t *testing.T, f func(t *testing.T, w *wire)) {
	b := create(t, setup(t), "wire", "-e", "FROM_SANDBOX=yes")
	for _, c := range []struct {
		name string
		opts []connect.ClientOption
	}{{"json", []connect.ClientOption{connect.WithProtoJSON()}}, {"binary", nil}} {
		t.Run(c.name, func(t *testing.T) {
			own := *b
			own.t = t
			f(t, reach(t, &own, c.opts...))
		})
	}
}

// wantCode fails the test unless err has the code.
func wantCode(t testing.TB, what string, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Errorf("%s: got %v, want %v", what, err, code)
	}
}

// as returns a context whose calls speak for a user.
func as(ctx context.Context, user string) context.Context {
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	return ctx
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// answerOf is an HTTP answer with its whole body.
type answerOf struct {
	status int
	header http.Header
	body   string
}

// ask sends one request of plain HTTP; headers come in pairs.
func (w *wire) ask(method, target string, body []byte, headers ...string) answerOf {
	w.t.Helper()
	req, err := http.NewRequestWithContext(within(w.t, time.Minute), method, base+target, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, target, err)
	}
	return answerOf{resp.StatusCode, resp.Header, string(b)}
}

// wantAnswer fails the test unless the answer is exactly this.
func wantAnswer(t testing.TB, what string, got answerOf, status int, body string) {
	t.Helper()
	if got.status != status || got.body != body {
		t.Errorf("%s: got %d %s, want %d %s", what, got.status, clip(got.body), status, body)
	}
}
