package client

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/belljar-sh/belljar/sandbox"
)

// Events returns what happened to a sandbox after the event numbered since,
// in order. With follow the stream goes on until the sandbox is dead, over
// restarts of the daemon too; without it ends with the newest event.
func (c *Client) Events(ctx context.Context, ref string, since int64, follow bool) (*Events, error) {
	e := &Events{c: c, ctx: ctx, ref: ref, since: since, follow: follow}
	return e, e.open()
}

// Events is a stream of events. It is for one goroutine, but Close may be
// called by another when the context of the stream has ended.
type Events struct {
	c      *Client
	ctx    context.Context
	ref    string
	since  int64
	follow bool

	body  io.ReadCloser
	lines *bufio.Scanner
}

func (e *Events) open() error {
	q := url.Values{"since": {strconv.FormatInt(e.since, 10)}}
	if e.follow {
		q.Set("follow", "1")
	}
	resp, err := e.c.send(e.ctx, request{method: http.MethodGet, path: of(e.ref) + "/events", query: q})
	if err != nil {
		return err
	}
	e.body, e.lines = resp.Body, bufio.NewScanner(resp.Body)
	e.lines.Buffer(nil, 1<<20)
	return nil
}

// Next returns the next event, or io.EOF when the stream has ended.
func (e *Events) Next() (sandbox.Event, error) {
	for {
		ev, err := e.next()
		if err == nil {
			e.since = ev.Seq
			return ev, nil
		}
		if !e.follow || !broken(err) {
			return ev, err
		}
		e.body.Close()
		if err := e.c.again(e.ctx, e.open); err != nil {
			return ev, err
		}
	}
}

func (e *Events) next() (ev sandbox.Event, err error) {
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			continue // sent to show that the stream is alive
		}
		if err := json.Unmarshal(line, &ev); err != nil {
			return ev, sandbox.Errorf(sandbox.Internal, "an event is not JSON: %w", err)
		}
		return ev, nil
	}
	if err := e.lines.Err(); err != nil {
		return ev, transportError(e.ctx, err)
	}
	return ev, io.EOF
}

// Close ends the stream.
func (e *Events) Close() error { return e.body.Close() }
