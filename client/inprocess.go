package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/belljar-sh/belljar/sandbox"
)

// InProcess returns a transport that calls h directly, without sockets. A
// request and its answer may flow at the same time; when the caller's context
// ends or it closes the answer's body, the handler's context ends and its
// reads and writes fail. The transport is a [FileSender] when h is one.
func InProcess(h http.Handler) http.RoundTripper { return &inProcess{h} }

type inProcess struct{ h http.Handler }

// SendFiles passes files to the handler.
func (t *inProcess) SendFiles(ctx context.Context, files []*os.File) ([]string, error) {
	s, ok := t.h.(FileSender)
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "this handler takes no open files")
	}
	return s.SendFiles(ctx, files)
}

// RoundTrip calls the handler in a goroutine and returns with its header.
func (t *inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	r := req.Clone(ctx)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RequestURI, r.RemoteAddr, r.Host = req.URL.RequestURI(), "in-process", req.URL.Host
	r.Body = serverBody(ctx, req)
	pr, pw := io.Pipe()
	w := &pipeWriter{header: http.Header{}, ready: make(chan struct{}), body: pw}
	context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })

	go func() {
		err := serve(t.h, w, r)
		if err == nil {
			w.WriteHeader(http.StatusOK) // a handler that wrote nothing
		}
		w.fail(err)
		pw.CloseWithError(err) // nil: EOF
		cancel(errAnswered)
		r.Body.Close()
	}()

	select {
	case <-w.ready:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err // and not what a handler says that was told to stop
	}
	if w.err != nil {
		return nil, w.err
	}
	return w.response(req, &answerBody{PipeReader: pr, cancel: cancel}), nil
}

var (
	errAnswered = fmt.Errorf("the request has been answered: %w", context.Canceled)
	errClosed   = fmt.Errorf("the answer was closed: %w", context.Canceled)
)

// serve calls h as an HTTP server would: a panic ends the request only.
func serve(h http.Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = io.ErrUnexpectedEOF
		default:
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()
	h.ServeHTTP(w, r)
	return nil
}

// pipeWriter is the handler's side of an answer.
type pipeWriter struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	ready  chan struct{} // closed when status and sent, or err, are set
	status int
	sent   http.Header
	err    error
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if status < 200 {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.ready)
	})
}

// fail ends the wait for a header that will not come.
func (w *pipeWriter) fail(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ready)
	})
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// FlushError sends the header; written bytes never wait.
func (w *pipeWriter) FlushError() error { w.Flush(); return nil }

// Flush is FlushError for http.Flusher.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

// EnableFullDuplex is for http.ResponseController: it always is.
func (w *pipeWriter) EnableFullDuplex() error { return nil }

func (w *pipeWriter) response(req *http.Request, body io.ReadCloser) *http.Response {
	length := int64(-1)
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		length = n
	}
	return &http.Response{
		Status:     strings.TrimSpace(strconv.Itoa(w.status) + " " + http.StatusText(w.status)),
		StatusCode: w.status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        w.sent,
		Body:          body,
		ContentLength: length,
		Request:       req,
	}
}

// answerBody ends the handler when the caller closes it early.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	b.cancel(errClosed)
	return b.PipeReader.CloseWithError(errClosed)
}

// serverBody is the handler's side of a request's body. A body that lies in
// memory is handed over as it is; any other is carried by a goroutine, so that
// the handler's reads end with ctx even when the caller's reader blocks.
func serverBody(ctx context.Context, req *http.Request) io.ReadCloser {
	if req.Body == nil || req.Body == http.NoBody {
		return http.NoBody
	}
	if req.GetBody != nil {
		return req.Body
	}
	pr, pw := io.Pipe()
	stop := context.AfterFunc(ctx, func() { pr.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer stop()
		defer req.Body.Close()
		_, err := io.CopyBuffer(struct{ io.Writer }{pw}, struct{ io.Reader }{req.Body}, make([]byte, 256<<10))
		pw.CloseWithError(err)
	}()
	return pr
}
