package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// NewProcessID draws a fresh random process ID.
func NewProcessID() string {
	var b [8]byte
	rand.Read(b[:])
	return "p" + hex.EncodeToString(b[:])
}

func withID(s *Start) *Start {
	if s == nil || s.ID != "" {
		return s
	}
	c := *s
	c.ID = NewProcessID()
	return &c
}

// Start begins a process and returns when it runs.
func (c *Client) Start(ctx context.Context, ref string, start Start) (Process, error) {
	var out Process
	err := c.call(ctx, http.MethodPost, of(ref)+"/processes", nil, withID(&start), &out)
	return out, err
}

// StartAttached is [Client.Start] and [Client.Attach] from the beginning in one
// request.
func (c *Client) StartAttached(ctx context.Context, ref string, start Start) (Process, *Output, error) {
	var p Process
	b, err := wire.JSONBody(withID(&start))
	if err != nil {
		return p, nil, err
	}
	resp, err := c.send(ctx, request{
		method: http.MethodPost, path: of(ref) + "/processes", query: url.Values{"output": {"1"}},
		body: b.Reader, size: b.Size, header: b.Header,
	})
	if err != nil {
		return p, nil, err
	}
	o := newOutput(ctx, resp.Body)
	if p, err = o.process(); err != nil {
		o.Close()
		return p, nil, err
	}
	return p, o, nil
}

// Processes lists the processes of a sandbox that were begun by Start and not
// yet forgotten.
func (c *Client) Processes(ctx context.Context, ref string) ([]Process, error) {
	var out api.ProcessList
	err := c.call(ctx, http.MethodGet, of(ref)+"/processes", nil, nil, &out)
	return out.Processes, err
}

// Process returns one process.
func (c *Client) Process(ctx context.Context, ref, process string) (Process, error) {
	var out Process
	err := c.call(ctx, http.MethodGet, proc(ref, process), nil, nil, &out)
	return out, err
}

// WaitProcess blocks until the process has exited. It does not take its
// output.
func (c *Client) WaitProcess(ctx context.Context, ref, process string) (Process, error) {
	var out Process
	err := c.again(ctx, func() error { return c.call(ctx, http.MethodGet, proc(ref, process)+"/wait", nil, nil, &out) })
	return out, err
}

// Attach streams the output of a process from the given byte offsets on, to
// its exit. What has been taken for good should be acknowledged with
// [Client.Ack]: a process whose reader does not is held back.
func (c *Client) Attach(ctx context.Context, ref, process string, stdout, stderr int64) (*Output, error) {
	q := url.Values{"stdout": {strconv.FormatInt(stdout, 10)}, "stderr": {strconv.FormatInt(stderr, 10)}}
	resp, err := c.send(ctx, request{method: http.MethodGet, path: proc(ref, process) + "/output", query: q})
	if err != nil {
		return nil, err
	}
	return newOutput(ctx, resp.Body), nil
}

// Ack tells that all output before these offsets has been taken for good.
func (c *Client) Ack(ctx context.Context, ref, process string, stdout, stderr int64) error {
	return c.call(ctx, http.MethodPost, proc(ref, process)+"/ack", nil, wire.Ack{Stdout: stdout, Stderr: stderr}, nil)
}

// Stdin writes to the standard input of a process: data is the input from
// byte offset on, and with eof its end follows. It returns the number of
// bytes that the process's pipe has taken in all, also beside an error when
// that is known, so that an interrupted write can go on there. A write that
// begins beyond that number is a conflict; bytes before it are skipped.
func (c *Client) Stdin(ctx context.Context, ref, process string, offset int64, data io.Reader, eof bool) (int64, error) {
	r := request{
		method: http.MethodPost,
		path:   proc(ref, process) + "/stdin",
		query:  url.Values{"offset": {strconv.FormatInt(offset, 10)}},
		body:   data,
		size:   -1,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	}
	if l, ok := data.(interface{ Len() int }); ok {
		r.size = int64(l.Len())
	}
	if eof {
		r.header.Set(wire.HeaderEOF, "1")
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return offset, err
	}
	defer resp.Body.Close()
	var out wire.StdinReply
	if err := decodeReply(ctx, resp.Body, &out); err != nil {
		return offset, err
	}
	return out.Offset, nil
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, ref, process string, size PTYSize) error {
	return c.call(ctx, http.MethodPost, proc(ref, process)+"/resize", nil, size, nil)
}

// Signal sends a signal to the process's group or, with tree, to it and all
// its descendants.
func (c *Client) Signal(ctx context.Context, ref, process string, signal int, tree bool) error {
	return c.call(ctx, http.MethodPost, proc(ref, process)+"/signal", nil, wire.Signal{Signal: signal, Tree: tree}, nil)
}

// KillProcess kills a process with all its descendants and forgets it. It
// returns when nothing of it is left.
func (c *Client) KillProcess(ctx context.Context, ref, process string) error {
	return c.call(ctx, http.MethodDelete, proc(ref, process), nil, nil, nil)
}

func proc(ref, process string) string { return of(ref) + "/processes/" + segment(process) }
