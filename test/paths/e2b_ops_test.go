package paths

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/belljar-sh/belljar/sandbox"
)

// The same requests over the E2B wire, whose paths may be relative to the
// user's home.

// e2b sends a request to the data plane of the sandbox.
func (c *caseRun) e2b(ctx context.Context, method, target, contentType string, body io.Reader) (string, error) {
	sb, err := c.api.Get(ctx, c.name)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(c.Run, "daemon.sock"))
	}, DisableCompression: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://belljar"+target, body)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Invalid, "%w", err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("E2b-Sandbox-Id", string(sb.ID))
	req.Header.Set("E2b-Sandbox-Port", "49983")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode >= 400 {
		return "", sandbox.Errorf(kindOf(resp.StatusCode), "%.512s", b)
	}
	return string(b), nil
}

func (c *caseRun) e2bGet(ctx context.Context, p, user string) (string, error) {
	q := url.Values{"path": {p}}
	if user != "" {
		q.Set("username", user)
	}
	return c.e2b(ctx, http.MethodGet, "/files?"+q.Encode(), "", nil)
}

// e2bPut writes a file and returns the path that the wire says it has.
func (c *caseRun) e2bPut(ctx context.Context, p, text string) (string, error) {
	out, err := c.e2b(ctx, http.MethodPost, "/files?path="+url.QueryEscape(p), "application/octet-stream", strings.NewReader(text))
	if err != nil {
		return "", err
	}
	var made []struct{ Path string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || len(made) != 1 {
		return "", fmt.Errorf("the answer is %q", out)
	}
	if want := c.v.Expect.AuditPath; want != "" && made[0].Path != want {
		c.t.Errorf("e2b write: the path is %q, want %q", made[0].Path, want)
	}
	return made[0].Path, nil
}

// e2bCall asks filesystem.Filesystem about a path. Its messages are of UTF-8,
// so another path cannot be named.
func (c *caseRun) e2bCall(way, method, p string) {
	c.t.Helper()
	if !utf8.ValidString(p) {
		return
	}
	body, err := json.Marshal(map[string]string{"path": p})
	c.must(err)
	a := c.try(way, func(ctx context.Context) (string, error) {
		return c.e2b(ctx, http.MethodPost, "/filesystem.Filesystem/"+method, "application/json", bytes.NewReader(body))
	})
	if method == "Remove" && a.err == nil {
		a.want, a.note = "ok", "what is not there is removed" // as the wire has it
	}
}

// e2bMultipart sends a part whose name is a path while the request has another:
// the request's counts.
func (c *caseRun) e2bMultipart(name, asked string) {
	c.t.Helper()
	body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name + "\"\r\n\r\nevil\r\n--b--\r\n"
	c.try("e2b multipart", func(ctx context.Context) (string, error) {
		return c.e2b(ctx, http.MethodPost, "/files?path="+url.QueryEscape(asked), "multipart/form-data; boundary=b", strings.NewReader(body))
	})
	if out, err := c.mischiefAs(c.name, "root", "cat", "/tmp/HOST_WRITE_CANARY", c.absent); err == nil {
		c.t.Errorf("the part's name was a path inside: %s", out)
	}
	// Alone it is a path inside the sandbox, and nowhere else.
	c.try("e2b multipart", func(ctx context.Context) (string, error) {
		return c.e2b(ctx, http.MethodPost, "/files", "multipart/form-data; boundary=b", strings.NewReader(body))
	})
	for _, p := range []string{"/tmp/HOST_WRITE_CANARY", c.absent} {
		c.api.Remove(c.t.Context(), c.name, p, "root") // where it is not there, that is well
	}
}

// multipartFloods sends forms that are too much.
func multipartFloods(c *caseRun) {
	c.mkdir()
	const parts, headers = 100_000, 10 << 20
	post := func(what, kind string, body io.Reader) {
		c.try("e2b "+what, func(ctx context.Context) (string, error) {
			return c.e2b(ctx, http.MethodPost, "/files", kind, body)
		})
	}
	many := strings.Repeat("--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nx\r\n", parts) + "--b--\r\n"
	post("many parts", "multipart/form-data; boundary=b", strings.NewReader(many))
	for _, head := range []string{"X-Long: " + strings.Repeat("x", headers), strings.Repeat("X-Short: y\r\n", headers/12) + "X-End: z"} {
		body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + c.dir + "/x\"\r\n" + head + "\r\n\r\nx\r\n--b--\r\n"
		post("long headers", "multipart/form-data; boundary=b", strings.NewReader(body))
	}
	post("no boundary", "multipart/form-data", strings.NewReader(many[:4096]))
	post("another boundary", "multipart/form-data; boundary=other", strings.NewReader(many))
}
