package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Logs streams what captured processes have written: that of one process, or
// with process "" that of all in the order of their start, each ended by a
// chunk of kind [ChunkExit] once it has exited. Where the middle was not kept
// there is a gap. With follow the stream goes on while a process runs, over
// restarts of the daemon too: no byte is lost or doubled.
func (c *Client) Logs(ctx context.Context, ref, process string, follow bool) (*Logs, error) {
	l := &Logs{c: c, ctx: ctx, ref: ref, only: process, follow: follow}
	return l, l.open()
}

// Logs is a stream of kept output. It is for one goroutine, but Close may be
// called by another when the context of the stream has ended.
type Logs struct {
	c         *Client
	ctx       context.Context
	ref, only string
	follow    bool

	out     *Output
	process string   // whose output comes now
	at      [3]int64 // by StreamID: its next byte
	ended   bool     // its exit has come
	done    bool
	moved   time.Time // when something has come
}

func (l *Logs) open() error {
	q := url.Values{}
	if l.only != "" {
		q.Set("process", l.only)
	}
	if l.process != "" {
		if l.only == "" {
			q.Set("from", l.process)
		}
		q.Set("stdout", strconv.FormatInt(l.at[Stdout], 10))
		q.Set("stderr", strconv.FormatInt(l.at[Stderr], 10))
	}
	if l.follow {
		q.Set("follow", "1")
	}
	resp, err := l.c.send(l.ctx, request{method: http.MethodGet, path: of(l.ref) + "/logs", query: q})
	if err != nil {
		return err
	}
	l.out, l.moved = newOutput(l.ctx, resp.Body), time.Now()
	return nil
}

// Process is the ID of the process that the last chunk came from.
func (l *Logs) Process() string { return l.process }

// Next returns the next piece, io.EOF after the last. A stream that breaks off
// is taken up again when it follows, and is an error when not.
func (l *Logs) Next() (Chunk, error) {
	for pause := firstPause; !l.done; {
		c, skip, err := l.next()
		switch {
		case err == nil && skip:
		case err == nil:
			l.moved = time.Now()
			return c, nil
		case !l.follow || !broken(err) || time.Since(l.moved) > patience:
			return c, err
		default:
			l.out.Close()
			if !sleep(l.ctx, pause) {
				return c, transportError(l.ctx, l.ctx.Err())
			}
			pause = min(2*pause, longPause)
			if err := l.c.again(l.ctx, l.open); err != nil {
				return c, err
			}
		}
	}
	return Chunk{}, io.EOF
}

// next reads one frame; skip tells that it is nothing for the caller.
func (l *Logs) next() (c Chunk, skip bool, err error) {
	f, b, err := l.out.frame()
	if err != nil {
		return c, false, err
	}
	if f.Type == wire.FrameJSON {
		return c, true, l.mark(b)
	}
	c, skip, err = decodeChunk(f, b)
	if err == nil && !skip {
		skip, err = l.advance(&c)
	}
	if err != nil {
		err = sandbox.Errorf(sandbox.Internal, "the stream of logs is not what the API promises: %w", err)
	}
	return c, skip, err
}

func (l *Logs) mark(b []byte) error {
	var m wire.LogMark
	if err := json.Unmarshal(b, &m); err != nil || m.End == (m.Process != "") {
		return sandbox.Errorf(sandbox.Internal, "a mark in the stream of logs is not what the API promises")
	}
	l.done = m.End
	if !m.End && m.Process != l.process {
		l.process, l.at, l.ended = m.Process, [3]int64{}, false
	}
	return nil
}

// advance moves the offset on. An exit that came before the connection broke is
// not told again.
func (l *Logs) advance(c *Chunk) (skip bool, err error) {
	if c.Kind == ChunkExit {
		skip, l.ended = l.ended, true
		return skip, nil
	}
	n := c.Lost
	if c.Kind == ChunkData {
		n = int64(len(c.Data))
	}
	at := &l.at[c.Stream]
	if c.Offset != *at {
		return false, errors.New("bytes are missing or come twice")
	}
	*at += n
	return false, nil
}

// Close ends the stream.
func (l *Logs) Close() error { return l.out.Close() }
