package compat

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/e2b"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// e2bPackage is the published client that is driven.
const e2bPackage = "e2b@2.51.0"

// npmTime bounds what the registry may take, and clientTime all the checks.
const (
	npmTime    = 2 * time.Minute
	clientTime = 5 * time.Minute
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.Cleanup()
	os.Exit(code)
}

// npm installs a package in a directory of its own, or skips the test.
func npm(t *testing.T, pkg string) string {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("probe: %s: %v", name, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), npmTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1", pkg)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("probe: npm install %s: %v\n%s", pkg, err, out)
	}
	return dir
}

// control answers the few calls of E2B's control plane that a client makes on
// its way to a sandbox, and passes everything else on to the daemon's socket.
type control struct {
	api   *client.Client
	plane http.Handler
}

func newControl(t *testing.T, e *testenv.Env) *control {
	t.Helper()
	api, err := client.Dial(t.Context(), client.Options{StateDir: e.State, RuntimeDir: e.Run, Program: filepath.Join(e.Bin, "belljar")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(e.Run, "daemon.sock"))
		},
		DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &control{api, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "daemon"}) },
		Transport:     tr,
		FlushInterval: -1,
	}}
}

// ServeHTTP implements http.Handler.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case e2b.Mine(r):
		// A stream begins to answer while its request's end is still being read:
		// without this the server would close the request, and with that the
		// proxy's connection, now and then.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			panic(err)
		}
		c.plane.ServeHTTP(w, r)
	case r.Method == http.MethodPost && r.URL.Path == "/v2/sandboxes":
		made, err := c.api.Create(r.Context(), sandbox.Spec{}, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{
			"sandboxID": string(made.Sandbox.ID), "templateID": "base", "clientID": "x", "envdVersion": e2b.Version,
		})
	case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, "/sandboxes/"):
		if _, err := c.api.Kill(r.Context(), strings.TrimPrefix(r.URL.Path, "/sandboxes/")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		http.NotFound(w, r)
	}
}

// TestE2BPackage drives the published JavaScript client through the data plane
// of a real sandbox.
func TestE2BPackage(t *testing.T) {
	testenv.NeedBoundary(t, sandbox.GVisor)
	dir := npm(t, e2bPackage)
	script, err := os.ReadFile(filepath.Join("testdata", "e2b.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "e2b.mjs"), script, 0o644); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(newControl(t, testenv.New(t)))
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), clientTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "e2b.mjs")
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir,
		"E2B_API_URL=" + srv.URL, "E2B_SANDBOX_URL=" + srv.URL, "E2B_API_KEY=e2b_0123456789abcdef0123456789abcdef01234567",
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s%s", err, out, stderr.String())
	}
	sc := bufio.NewScanner(strings.NewReader(string(out)))
	sc.Buffer(nil, 1<<20)
	n := 0
	for sc.Scan() {
		var line struct {
			Name, Error string
			MS          int
		}
		if json.Unmarshal(sc.Bytes(), &line) != nil {
			continue // what the package itself prints
		}
		n++
		t.Run(line.Name, func(t *testing.T) {
			t.Logf("%d ms", line.MS)
			if line.Error != "" {
				t.Error(line.Error)
			}
		})
	}
	if n < 19 {
		t.Errorf("%d checks ran: %s%s", n, out, stderr.String())
	}
}
