package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// endOfFile is what a terminal takes for the end of input.
const endOfFile = 0x04

// stdin is the writing end of a process's standard input.
type stdin struct {
	f   *os.File
	tty bool // f is the master of a PTY, which is closed with the output

	taken atomic.Int64
	over  atomic.Bool // the process has ended

	mu     sync.Mutex // one writer at a time
	closed bool
}

// postStdin writes the body to the process, from the offset that the request
// says it begins at. What has been taken before is passed over, so a request
// that was cut off can be sent again.
func (s *Server) postStdin(q *request) error {
	p, err := s.process(q)
	if err != nil {
		return err
	}
	if p.stdin == nil {
		return sandbox.Errorf(sandbox.Invalid, "the process was begun without standard input").WithField("id", p.info.ID)
	}
	at := int64(-1)
	if q.URL.Query().Has("offset") {
		if at, err = q.number("offset"); err != nil {
			return err
		}
	}
	if err := p.stdin.take(q.ctx, q.Body, at, q.Header.Get(wire.HeaderEOF) == "1"); err != nil {
		return err
	}
	return q.json(wire.StdinReply{Offset: p.stdin.taken.Load()})
}

var errStdinClosed = sandbox.Errorf(sandbox.Conflict, "the process does not read its standard input any more")

// take copies body to the process. An offset of -1 means "from here on".
func (in *stdin) take(ctx context.Context, body io.Reader, at int64, eof bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	taken := in.taken.Load()
	if at < 0 {
		at = taken
	}
	if at > taken {
		return sandbox.Errorf(sandbox.Conflict, "standard input has been taken up to byte %d only", taken).
			WithField("offset", strconv.FormatInt(at, 10))
	}
	if in.closed {
		if n, _ := io.CopyN(io.Discard, body, taken-at+1); n <= taken-at && eof {
			return nil // the same end again
		}
		return errStdinClosed
	}
	in.f.SetWriteDeadline(time.Time{})
	if in.over.Load() {
		return errStdinClosed
	}
	defer context.AfterFunc(ctx, func() { in.f.SetWriteDeadline(time.Unix(1, 0)) })()
	if err := in.copy(body, taken-at); err != nil {
		return err
	}
	if !eof {
		return nil
	}
	if in.tty {
		return stdinError(in.write([]byte{endOfFile}))
	}
	in.closed = true
	in.f.Close()
	return nil
}

func (in *stdin) copy(body io.Reader, skip int64) error {
	if skip > 0 {
		if _, err := io.CopyN(io.Discard, body, skip); err != nil {
			return nil // shorter than what has been taken
		}
	}
	buf := buffers.Get().(*[wire.HeaderLen + maxPooled]byte)
	defer buffers.Put(buf)
	for {
		n, err := body.Read(buf[:maxPooled])
		if n > 0 {
			w, werr := in.f.Write(buf[:n])
			in.taken.Add(int64(w))
			if werr != nil {
				return stdinError(werr)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return sandbox.Errorf(sandbox.Canceled, "the request was cut off").WithCause(err)
		}
	}
}

func (in *stdin) write(b []byte) error {
	_, err := in.f.Write(b)
	return err
}

func stdinError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return sandbox.Errorf(sandbox.Canceled, "the request was given up while the process was not reading")
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO), errors.Is(err, os.ErrClosed):
		return errStdinClosed
	}
	return sandbox.Errorf(sandbox.Internal, "standard input cannot be written: %w", err)
}

// hangup wakes a writer when the process has ended.
func (in *stdin) hangup() {
	in.over.Store(true)
	in.f.SetWriteDeadline(time.Unix(1, 0))
	go in.close() // as soon as that writer is out
}

func (in *stdin) close() {
	if in.tty {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.closed = true
		in.f.Close()
	}
}
