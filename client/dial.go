package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/daemon/fdpass"
	"github.com/belljar-sh/belljar/internal/daemon/ondemand"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// HeaderBuild carries the build of a client that wants a daemon of the same
// build, and in answers that of the daemon.
const HeaderBuild = "Belljar-Build"

// Options say how to reach the daemon of the calling user. The zero value is
// right for most programs that stand beside an installed belljar.
type Options struct {
	// StateDir and RuntimeDir override the user's directories, as
	// BELLJAR_STATE_DIR and BELLJAR_RUNTIME_DIR do.
	StateDir   string
	RuntimeDir string
	// Program is the belljar program that starts the daemon. Empty: the
	// running program when it is belljar, else that found in PATH.
	Program string
	// NoStart reaches only a daemon that runs already; else the kind of the
	// error is [sandbox.Unavailable].
	NoStart bool
	// Build, when set, is the build ID that the daemon must have; another is a
	// [sandbox.Conflict] that tells how to replace it.
	Build string
}

// Dial reaches the daemon of the calling user, starting it when there is none.
// The connection is made again, and the daemon started again, as often as it
// is needed later.
func Dial(ctx context.Context, o Options) (*Client, error) {
	dirs, err := o.dirs()
	if err != nil {
		return nil, err
	}
	program, err := o.program()
	if err != nil && !o.NoStart {
		return nil, err
	}
	t := &unixTransport{on: ondemand.Options{Dirs: dirs, Program: program, NoStart: o.NoStart}, build: o.Build}
	t.http = &http.Transport{
		DialContext:         t.dial,
		DisableCompression:  true,
		MaxIdleConns:        16,
		MaxIdleConnsPerHost: 16,
		ReadBufferSize:      64 << 10,
		WriteBufferSize:     256 << 10,
	}
	// The first connection is made now, so that a caller learns here that there
	// is none to be had; the transport keeps it for the first request.
	conn, err := t.on.Dial(ctx, dirs.DaemonSocket())
	if err != nil {
		return nil, transportError(ctx, err)
	}
	t.first = make(chan net.Conn, 1)
	t.first <- conn
	return New(t), nil
}

func (o Options) dirs() (config.Dirs, error) {
	get := func(name string) string {
		switch {
		case name == config.EnvState && o.StateDir != "":
			return o.StateDir
		case name == config.EnvRuntime && o.RuntimeDir != "":
			return o.RuntimeDir
		}
		return os.Getenv(name)
	}
	home, _ := os.UserHomeDir() // Find says what is missing
	return config.Find(get, os.Geteuid(), home)
}

// program finds what starts the daemon.
func (o Options) program() (string, error) {
	if o.Program != "" {
		return o.Program, nil
	}
	self, err := os.Executable()
	if err == nil && filepath.Base(self) == "belljar" {
		return self, nil
	}
	p, err := exec.LookPath("belljar")
	if err != nil {
		return "", sandbox.Errorf(sandbox.NotFound, "the belljar program is not in PATH: %w", err).
			WithHint("install Belljar, or set Options.Program")
	}
	return p, nil
}

// unixTransport is HTTP over the daemon's socket, with open files over the
// socket beside it.
type unixTransport struct {
	on    ondemand.Options
	http  *http.Transport
	build string
	first chan net.Conn
}

// RoundTrip sends one request.
func (t *unixTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.build != "" {
		req = req.Clone(req.Context())
		req.Header.Set(HeaderBuild, t.build)
	}
	return t.http.RoundTrip(req)
}

// CloseIdleConnections closes what no request uses.
func (t *unixTransport) CloseIdleConnections() {
	select {
	case conn := <-t.first:
		conn.Close()
	default:
	}
	t.http.CloseIdleConnections()
}

func (t *unixTransport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case conn := <-t.first:
		return conn, nil
	default:
		return t.on.Dial(ctx, t.on.Dirs.DaemonSocket())
	}
}

// SendFiles passes files in one message over the daemon's second socket.
func (t *unixTransport) SendFiles(ctx context.Context, files []*os.File) ([]string, error) {
	conn, err := t.on.Dial(ctx, t.on.Dirs.FDSocket())
	if err != nil {
		return nil, transportError(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	ticket := rand.Text()
	msg, err := json.Marshal(wire.FDTicket{Ticket: ticket, Count: len(files)})
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "the ticket cannot be encoded: %w", err)
	}
	if err := fdpass.Send(conn.(*net.UnixConn), msg, files); err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the open files could not be passed: %w", err)
	}
	return fdpass.Handles(ticket, len(files)), nil
}
