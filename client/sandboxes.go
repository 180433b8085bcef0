package client

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/sandbox"
)

// Create makes a sandbox and, when start is not nil, its first process. It
// returns when the guest has answered. A sandbox whose first process failed
// to start exists; Created.StartError then says why.
func (c *Client) Create(ctx context.Context, spec sandbox.Spec, start *Start) (Created, error) {
	var out Created
	in := api.CreateRequest{Spec: spec, Start: withID(start)}
	err := c.call(ctx, http.MethodPost, "/sandboxes", nil, in, &out)
	return out, err
}

// List returns the sandboxes that are not dead, oldest first; with all, those
// that are dead and not yet forgotten too.
func (c *Client) List(ctx context.Context, all bool) ([]sandbox.Sandbox, error) {
	var out api.SandboxList
	q := url.Values{}
	if all {
		q.Set("all", "1")
	}
	err := c.call(ctx, http.MethodGet, "/sandboxes", q, nil, &out)
	return out.Sandboxes, err
}

// Get returns one sandbox by its ID or name. A name means the living sandbox
// that has it, else the one that had it last.
func (c *Client) Get(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodGet, of(ref), nil, nil, &out)
	return out, err
}

// Kill ends a sandbox and returns its last record when nothing of it is left
// on the host. A sandbox that is dead already is no error.
func (c *Client) Kill(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodDelete, of(ref), nil, nil, &out)
	return out, err
}

// Pause writes memory and files of a sandbox to disk and gives back everything
// else that it holds of the host. A sandbox that is paused already is no error;
// when it fails the sandbox runs on. The next request for a process or a file
// resumes it; streams of output and waits do not, they wait with it.
func (c *Client) Pause(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodPost, of(ref)+"/pause", nil, nil, &out)
	return out, err
}

// PauseFiles is Pause without memory: all processes end, and the sandbox, once
// it is resumed, boots anew with its files.
func (c *Client) PauseFiles(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodPost, of(ref)+"/pause", url.Values{"memory": {"0"}}, nil, &out)
	return out, err
}

// Resume has a paused sandbox go on where it was. A sandbox that runs already is
// no error; when it fails the sandbox stays paused.
func (c *Client) Resume(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodPost, of(ref)+"/resume", nil, nil, &out)
	return out, err
}

// ResumeVerified is Resume once every byte of the sandbox's image has been
// compared with what was saved. A sandbox that runs already is a
// [sandbox.Conflict].
func (c *Client) ResumeVerified(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodPost, of(ref)+"/resume", url.Values{"verify": {"full"}}, nil, &out)
	return out, err
}

// Wait blocks until the sandbox is dead and returns its last record.
func (c *Client) Wait(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.again(ctx, func() error { return c.call(ctx, http.MethodGet, of(ref)+"/wait", nil, nil, &out) })
	return out, err
}

// WaitCommand blocks until the command that the sandbox was made with has
// ended, or the sandbox is dead, and returns the record: Command.Exit tells how
// it ended. A sandbox without a command is waited for as by [Client.Wait].
func (c *Client) WaitCommand(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	q := url.Values{"command": {"1"}}
	err := c.again(ctx, func() error { return c.call(ctx, http.MethodGet, of(ref)+"/wait", q, nil, &out) })
	return out, err
}

// SetTimeout has the sandbox end d from now, or from its resume when it is
// paused; 0 takes the timeout away.
func (c *Client) SetTimeout(ctx context.Context, ref string, d time.Duration) (sandbox.Sandbox, error) {
	var out sandbox.Sandbox
	err := c.call(ctx, http.MethodPut, of(ref)+"/timeout", nil, api.TimeoutRequest{Timeout: &d}, &out)
	return out, err
}

// Stats tells what a sandbox uses now.
func (c *Client) Stats(ctx context.Context, ref string) (Stats, error) {
	var out Stats
	err := c.call(ctx, http.MethodGet, of(ref)+"/stats", nil, nil, &out)
	return out, err
}

// Info tells who serves the API. It is quick.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var out Info
	err := c.call(ctx, http.MethodGet, "/info", nil, nil, &out)
	return out, err
}

// Probe is [Client.Info] with a report of every boundary, for which the host
// is asked anew.
func (c *Client) Probe(ctx context.Context) (Info, error) {
	var out Info
	err := c.call(ctx, http.MethodGet, "/info", url.Values{"probe": {"1"}}, nil, &out)
	return out, err
}

// Templates lists what sandboxes can start from.
func (c *Client) Templates(ctx context.Context) ([]sandbox.Template, error) {
	var out api.TemplateList
	err := c.call(ctx, http.MethodGet, "/templates", nil, nil, &out)
	return out.Templates, err
}

// Stop ends the daemon and returns when it has ended. Without kill its
// sandboxes go on and the next daemon adopts them; with it they are killed
// first.
func (c *Client) Stop(ctx context.Context, kill bool) error {
	q := url.Values{}
	if kill {
		q.Set("kill", "1")
	}
	wait := func(context.Context) error { return nil }
	if t, ok := c.rt.(*unixTransport); ok {
		var err error
		if wait, err = t.on.Ending(ctx); err != nil {
			return transportError(ctx, err)
		}
	}
	if err := c.call(ctx, http.MethodPost, "/stop", q, nil, nil); err != nil {
		return err
	}
	return wait(ctx)
}

// FileSender is an optional interface of a transport that can pass open files
// to the manager.
type FileSender interface {
	// SendFiles passes files and returns one handle for each. The caller keeps
	// its files and may close them at once. A handle is taken by one create and
	// lapses after a minute.
	SendFiles(ctx context.Context, files []*os.File) ([]string, error)
}

// SendFiles passes open files or directories (O_PATH is enough) that are to
// be mounted, and returns for each the handle that goes into
// [sandbox.Mount].Handle. It is [sandbox.Unsupported] over a transport that
// cannot carry descriptors.
func (c *Client) SendFiles(ctx context.Context, files []*os.File) ([]string, error) {
	s, ok := c.rt.(FileSender)
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "this transport cannot pass open files").
			WithHint("use the unix socket of the daemon, or files and tar streams instead of mounts")
	}
	return s.SendFiles(ctx, files)
}

// of is the path of a sandbox. It escapes "." and "..", which would be taken
// for steps in the path.
func of(ref string) string { return "/sandboxes/" + segment(ref) }

func segment(s string) string {
	switch s {
	case "", ".", "..":
		return "%00" + s // no name is like this: the API says what is wrong with it
	}
	return url.PathEscape(s)
}
