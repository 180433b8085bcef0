package keeper

import (
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	guestPrefix = "/guest/"
	// maxHeader bounds one header value that passes, either way.
	maxHeader = 4 << 10
	// maxMeta bounds the extended attributes of a file: 4 KiB of text, escaped.
	maxMeta   = 32 << 10
	copyChunk = 256 << 10
)

// Headers that pass. Everything else stays on its side: credentials of the
// caller's do not reach a guest, and a guest sets nothing else of an answer.
var (
	toGuest   = []string{"Content-Type", "Range", guest.HeaderEOF, guest.HeaderMeta}
	fromGuest = []string{"Content-Type", "Content-Range", "Accept-Ranges", "Last-Modified", guest.HeaderEOF}
)

var chunks = sync.Pool{New: func() any { return new([copyChunk]byte) }}

// guest forwards one request to a guest, streaming both ways.
func (k *keeper) guest(w http.ResponseWriter, r *http.Request) {
	id, gen, rest, err := parseGuestPath(r.URL.EscapedPath())
	if err != nil {
		writeError(w, err)
		return
	}
	b := k.find(id)
	if b == nil {
		writeError(w, sandbox.Errorf(sandbox.NotFound, "this keeper has no such sandbox").WithField("id", string(id)))
		return
	}
	down, current, err := b.live()
	if err == nil && gen != current {
		err = sandbox.Errorf(sandbox.Conflict, "this generation of the sandbox is over").WithField("generation", strconv.FormatUint(gen, 10))
	}
	if err != nil {
		writeError(w, err)
		return
	}
	out, err := guestRequest(r, gen, rest)
	if err != nil {
		writeError(w, err)
		return
	}
	if r.ProtoMajor == 1 {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			writeError(w, err)
			return
		}
	}
	body := &requestBody{ReadCloser: out.Body}
	if out.Body != nil {
		out.Body = body
	}
	resp, err := down.RoundTrip(out)
	if out.Body != nil && !body.ended.Load() {
		// The answer has come before all of the body was read, and what is left
		// may be read at any time from now on, beside the next request's head.
		w.Header().Set("Connection", "close")
	}
	if err != nil {
		writeError(w, err)
		return
	}
	defer resp.Body.Close()
	if r.ProtoMajor == 1 && framed(out) && resp.StatusCode < 400 {
		// Frames tell their own end. Chunks around them would cost three writes
		// for each instead of one, and could not be moved unread.
		w.Header().Set("Transfer-Encoding", "identity")
	}
	answer(w, resp)
}

// requestBody notes that all of a body has been read.
type requestBody struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read reads from the body.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
	}
	return n, err
}

// framed reports whether the answer to r consists of frames.
func framed(r *http.Request) bool {
	switch p := r.URL.Path; {
	case p == "/v1/processes":
		return r.Method == http.MethodPost && r.URL.RawQuery != ""
	case strings.HasPrefix(p, "/v1/processes/"):
		return strings.HasSuffix(p, "/output")
	default:
		return p == "/v1/watch"
	}
}

// parseGuestPath takes apart /guest/{id}/{generation}/v1/...; rest begins with
// /v1/ and stays escaped.
func parseGuestPath(p string) (id sandbox.ID, gen uint64, rest string, err error) {
	bad := func() (sandbox.ID, uint64, string, error) {
		return "", 0, "", sandbox.Errorf(sandbox.NotFound, "the path is not /guest/{id}/{generation}/v1/...").WithField("path", p)
	}
	parts := strings.SplitN(strings.TrimPrefix(p, guestPrefix), "/", 3)
	if len(parts) != 3 || !strings.HasPrefix(parts[2], "v1/") {
		return bad()
	}
	if id, err = sandbox.ParseID(parts[0]); err != nil {
		return "", 0, "", err
	}
	if gen, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return bad()
	}
	return id, gen, "/" + parts[2], nil
}

func guestRequest(r *http.Request, gen uint64, rest string) (*http.Request, error) {
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return nil, sandbox.Errorf(sandbox.Invalid, "a guest is asked with GET, POST, PUT or DELETE").WithField("method", r.Method)
	}
	// One spelling for each path, so that what is checked is what is asked for.
	if strings.Contains(rest, "%") || path.Clean(rest) != rest {
		return nil, sandbox.Errorf(sandbox.Invalid, "the path is not in its plain form").WithField("path", rest)
	}
	if strings.HasPrefix(rest, "/v1/hello") || strings.HasPrefix(rest, "/v1/quiesce") {
		return nil, sandbox.Errorf(sandbox.Denied, "only the keeper says this to a guest").WithField("path", rest)
	}
	out := (&http.Request{
		Method:        r.Method,
		URL:           &url.URL{Scheme: "http", Host: "guest", Path: rest, RawQuery: r.URL.RawQuery},
		Host:          "guest",
		Header:        pass(r.Header, toGuest),
		ContentLength: r.ContentLength,
	}).WithContext(r.Context())
	if r.ContentLength != 0 {
		out.Body = r.Body
	}
	setGeneration(out.Header, gen)
	return out, nil
}

func setGeneration(h http.Header, gen uint64) {
	h.Set(guest.HeaderGeneration, strconv.FormatUint(gen, 10))
}

func pass(from http.Header, names []string) http.Header {
	to := http.Header{}
	for _, name := range names {
		most := maxHeader
		if name == guest.HeaderMeta {
			most = maxMeta
		}
		if v := from.Get(name); v != "" && len(v) <= most {
			to.Set(name, v)
		}
	}
	return to
}

// answer forwards a guest's answer. An answer that breaks off is broken off on
// this side too: it must not look complete.
func answer(w http.ResponseWriter, resp *http.Response) {
	for name, v := range pass(resp.Header, fromGuest) {
		w.Header()[name] = v
	}
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	// A type is always set, or the server would guess one.
	if w.Header().Get("Content-Type") == "" {
		w.Header()["Content-Type"] = nil
	}
	status := resp.StatusCode
	if status < 200 || status > 599 {
		status = http.StatusBadGateway
	}
	w.WriteHeader(status)
	if !stream(w, resp) {
		panic(http.ErrAbortHandler)
	}
}

// stream copies the body, each piece as soon as it has come.
func stream(w http.ResponseWriter, resp *http.Response) (whole bool) {
	rc := http.NewResponseController(w)
	if resp.ContentLength != 0 && rc.Flush() != nil {
		return false
	}
	buf := chunks.Get().(*[copyChunk]byte)
	defer chunks.Put(buf)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return false
			}
			if rc.Flush() != nil {
				return false
			}
		}
		if err != nil {
			return isEOF(err)
		}
	}
}
