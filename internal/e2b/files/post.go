package files

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"

	"compress/gzip"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on a form: its parts, and what may come between the content of two.
const (
	maxParts  = 1024
	maxHeader = 64 << 10
)

// post takes files, in either of the two forms.
func (s *Service) post(w http.ResponseWriter, r *http.Request) {
	asked, user, ok := target(w, r)
	if !ok {
		return
	}
	meta, err := parseMeta(r.Header)
	if err != nil {
		reply.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		reply.Fail(w, http.StatusBadRequest, "the Content-Type is neither multipart/form-data nor application/octet-stream")
		return
	}
	up := &incoming{s: s, w: w, r: r, asked: asked, user: user, meta: meta, size: r.ContentLength}
	if up.body, err = up.decoded(); err != nil {
		reply.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	switch kind {
	case "application/octet-stream":
		up.octets()
	case "multipart/form-data":
		up.form(params["boundary"])
	default:
		reply.Fail(w, http.StatusBadRequest, "the Content-Type is neither multipart/form-data nor application/octet-stream")
	}
}

// incoming is one upload.
type incoming struct {
	s           *Service
	w           http.ResponseWriter
	r           *http.Request
	asked, user string
	meta        map[string]string
	body        io.Reader
	size        int64 // of body, -1: not known
	done        []written
}

// decoded returns the body without its encoding.
func (u *incoming) decoded() (io.Reader, error) {
	switch enc := strings.ToLower(strings.TrimSpace(u.r.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		return u.r.Body, nil
	case "gzip":
		u.size = -1
		z, err := gzip.NewReader(u.r.Body)
		if err != nil {
			return nil, errors.New("the body is not compressed with gzip")
		}
		return z, nil
	}
	return nil, errors.New("a body is sent as it is or compressed with gzip")
}

func (u *incoming) octets() {
	if u.asked == "" {
		reply.Fail(u.w, http.StatusBadRequest, "an upload of application/octet-stream needs a path")
		return
	}
	if u.put(u.asked, u.body, u.size) {
		reply.JSON(u.w, http.StatusOK, u.done)
	}
}

// form takes the files of a form, one after another. Those that came before an
// error stay.
func (u *incoming) form(boundary string) {
	bad := func(sentence string) { reply.Fail(u.w, http.StatusBadRequest, sentence) }
	if boundary == "" || len(boundary) > 70 {
		bad("multipart/form-data has a boundary of 1 to 70 characters")
		return
	}
	between := &rationed{r: u.body}
	parts := multipart.NewReader(between, boundary)
	seen := map[string]bool{}
	u.done = []written{}
	for n := 0; ; n++ {
		between.left = maxHeader
		p, err := parts.NextRawPart()
		if err == io.EOF {
			reply.JSON(u.w, http.StatusOK, u.done)
			return
		}
		if err != nil {
			bad("the form cannot be read")
			return
		}
		if n >= maxParts {
			bad("a form has at most 1024 parts")
			return
		}
		between.left = -1
		field, name, err := partName(p.Header.Get("Content-Disposition"))
		if err != nil {
			bad(err.Error())
			return
		}
		if field != "file" {
			if _, err := io.Copy(io.Discard, p); err != nil {
				bad("the form cannot be read")
				return
			}
			continue
		}
		if u.asked != "" {
			name = u.asked
		}
		switch {
		case name == "":
			bad("a part named file has no file name, and the request no path")
			return
		case seen[name]:
			bad("path '" + valid(name) + "' is given twice")
			return
		}
		seen[name] = true
		if !u.put(name, p, -1) {
			return
		}
	}
}

// rationed reads no more than it may: a form's headers are held in memory by
// who parses them.
type rationed struct {
	r    io.Reader
	left int // -1: as much as there is
}

// Read implements io.Reader.
func (b *rationed) Read(p []byte) (int, error) {
	if b.left < 0 {
		return b.r.Read(p)
	}
	if b.left == 0 {
		return 0, errors.New("too much comes between two parts of the form")
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// put writes one file; it has answered when it returns false.
func (u *incoming) put(name string, body io.Reader, size int64) bool {
	ctx, cancel := context.WithCancel(u.r.Context())
	defer cancel()
	in := &watched{r: body, failed: cancel}
	e, err := u.s.g.Put(ctx, u.s.place(name), u.user, u.meta, in, size)
	switch {
	case err == nil:
		u.done = append(u.done, wrote(&e, u.meta))
		return true
	case in.broken.Load():
		reply.Fail(u.w, http.StatusBadRequest, "the upload broke off, or its encoding is damaged")
	default:
		u.s.fail(u.w, u.r, name, u.user, err)
	}
	return false
}

// watched remembers that a body broke off, to tell a caller's fault from the
// sandbox's, and gives the request to the guest up. A transport may read on
// when its request has failed.
type watched struct {
	r      io.Reader
	failed func()
	broken atomic.Bool
}

// Read implements io.Reader.
func (b *watched) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.broken.Store(true)
		b.failed()
	}
	return n, err
}

// partName reads the names of a part of a form: of its field, and of its file,
// which is a path and is taken as it stands.
func partName(disposition string) (field, file string, err error) {
	kind, params, err := mime.ParseMediaType(disposition)
	if err != nil || kind != "form-data" {
		return "", "", errors.New("a part of the form does not say what it is")
	}
	file = params["filename"]
	if len(file) >= sandbox.MaxPath || strings.IndexByte(file, 0) >= 0 {
		return "", "", errors.New("the name of a file has less than 4096 bytes and no NUL")
	}
	return params["name"], file, nil
}
