package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"compress/gzip"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
)

// maxUnsized bounds a file that has content although it says that it has none,
// as those of /proc do: it is held until its length is known.
const maxUnsized = 1 << 20

// maxRanges bounds the parts of a file that one request gets apart: each is a
// request to the guest.
const maxRanges = 16

// get sends a file.
func (s *Service) get(w http.ResponseWriter, r *http.Request) {
	asked, user, ok := target(w, r)
	if !ok {
		return
	}
	w.Header().Set("Vary", "Accept-Encoding")
	how := chooseEncoding(r.Header.Get("Accept-Encoding"))
	if how == unacceptable {
		reply.Fail(w, http.StatusNotAcceptable, "only gzip and identity are spoken here")
		return
	}
	file := &remote{ctx: r.Context(), g: s.g, path: s.place(asked), user: user}
	defer file.Close()
	if err := file.open(0); err != nil {
		s.fail(w, r, asked, user, err)
		return
	}
	h := w.Header()
	name := path.Base(path.Clean("/" + asked))
	h.Set("Content-Disposition", disposition(name))
	h.Set("Content-Type", contentType(name))
	switch {
	case file.size <= 0:
		s.sendUnsized(w, r, asked, user, file)
	case how == gzipped && !conditional(r):
		sendZipped(w, file)
	default:
		if strings.Count(r.Header.Get("Range"), ",") >= maxRanges {
			r.Header.Del("Range") // the whole file is an answer, too
		}
		http.ServeContent(w, r, name, file.modTime, file)
	}
}

// conditional reports whether a request asks for a part, or only for what has
// changed: such are answered with the bytes as they are.
func conditional(r *http.Request) bool {
	for _, k := range []string{"Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"} {
		if r.Header.Get(k) != "" {
			return true
		}
	}
	return false
}

func disposition(name string) string {
	return mime.FormatMediaType("inline", map[string]string{"filename": valid(name)})
}

func contentType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

func (s *Service) sendUnsized(w http.ResponseWriter, r *http.Request, asked, user string, file *remote) {
	b, err := io.ReadAll(io.LimitReader(file.body, maxUnsized+1))
	switch {
	case err != nil:
		s.fail(w, r, asked, user, err)
	case len(b) > maxUnsized:
		reply.Fail(w, http.StatusBadRequest, "the file does not say how long it is, and has more than a megabyte")
	default:
		http.ServeContent(w, r, path.Base(asked), file.modTime, bytes.NewReader(b))
	}
}

// sendZipped sends the whole file compressed. One that breaks off ends the
// connection, so that nobody takes a part for the whole.
func sendZipped(w http.ResponseWriter, file *remote) {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	if !file.modTime.IsZero() {
		h.Set("Last-Modified", file.modTime.UTC().Format(http.TimeFormat))
	}
	w.WriteHeader(http.StatusOK)
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		var n int64
		n, err = io.Copy(z, file.body)
		if err == nil && n != file.size {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// remote is a file in the sandbox as http.ServeContent reads it: it is opened
// where reading begins.
type remote struct {
	ctx        context.Context
	g          Guest
	path, user string

	size    int64 // -1: not known
	modTime time.Time
	pos     int64
	body    io.ReadCloser // nil: to be opened at pos
	bodyAt  int64
	opened  bool
}

// open opens the file at an offset.
func (f *remote) open(from int64) error {
	got, err := f.g.Open(f.ctx, f.path, f.user, from)
	if err != nil {
		return err
	}
	if !f.opened {
		f.opened, f.size, f.modTime = true, got.Size, got.ModTime
	}
	f.body, f.bodyAt = got, from
	return nil
}

// Seek implements io.Seeker.
func (f *remote) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errors.New("the offset is negative")
	}
	f.pos = offset
	return offset, nil
}

// Read implements io.Reader.
func (f *remote) Read(p []byte) (int, error) {
	if f.pos >= f.size {
		return 0, io.EOF
	}
	if f.body != nil && f.bodyAt != f.pos {
		f.Close()
	}
	if f.body == nil {
		if err := f.open(f.pos); err != nil {
			return 0, err
		}
	}
	n, err := f.body.Read(p[:min(int64(len(p)), f.size-f.pos)])
	f.pos += int64(n)
	f.bodyAt = f.pos
	if err == io.EOF && f.pos < f.size {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close lets go of what is open.
func (f *remote) Close() {
	if f.body != nil {
		_ = f.body.Close()
		f.body = nil
	}
}
