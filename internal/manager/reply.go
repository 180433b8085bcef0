package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

// Bounds on what a guest may answer with. A few bytes of JSON can decode to
// hundreds of bytes of memory, so lists are counted too, and guest/wire counts
// the parts of large answers.
const (
	maxSmall   = 64 << 10 // counts and acknowledgements
	maxEntry   = 1 << 20  // two paths and extended attributes, escaped
	maxProcess = 8 << 20  // maxArgBytes of arguments, escaped
	maxReply   = 16 << 20 // a list

	// MaxEntries bounds the entries of a directory listing; a guest lists
	// fewer.
	MaxEntries = 100_000
)

// replyLimit returns how many bytes an answer for out may have.
func replyLimit(out any) int64 {
	switch out.(type) {
	case *guest.Process:
		return maxProcess
	case *guest.Entry:
		return maxEntry
	case *map[string]string:
		return maxProcess // sandbox.MaxEnvBytes, escaped
	}
	return maxSmall
}

// decode reads a JSON answer that is no list; out may be nil.
func (g *Guest) decode(ctx context.Context, resp *http.Response, out any) error {
	most := replyLimit(out)
	b, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return g.explain(ctx, err)
	case int64(len(b)) > most:
		return badGuest("an answer of more than %d bytes", most)
	case out == nil:
		return nil
	}
	return decodeOne(b, out)
}

// checked is what a guest says that can be told from what it cannot say.
type checked interface{ Check() error }

// decodeOne decodes one value and checks it.
func decodeOne(b []byte, out any) error {
	err := guest.Decode(b, out)
	if c, ok := out.(checked); ok && err == nil {
		err = c.Check()
	}
	if err != nil {
		return badGuest("an answer that cannot be: %v", err)
	}
	return nil
}

// List gets a list of at most most values, one at a time: more is the error of
// a guest that is not to be trusted, before the rest is decoded. No list is an
// empty one.
func List[T any](ctx context.Context, g *Guest, path string, query url.Values, most int) ([]T, error) {
	resp, err := g.Do(ctx, Request{Method: http.MethodGet, Path: path, Query: query})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	from := &failing{r: io.LimitReader(resp.Body, maxReply+1)}
	out, err := decodeList[T](from, most)
	switch {
	case from.err != nil:
		return nil, g.explain(ctx, from.err)
	case from.n > maxReply:
		return nil, badGuest("an answer of more than %d bytes", maxReply)
	case err != nil:
		return nil, err
	}
	return out, nil
}

func decodeList[T any](r io.Reader, most int) ([]T, error) {
	unreadable := func(err error) error { return badGuest("a list that cannot be read: %v", err) }
	d := json.NewDecoder(r)
	out := []T{}
	switch t, err := d.Token(); {
	case err != nil:
		return nil, unreadable(err)
	case t == nil:
		return out, end(d)
	case t != json.Delim('['):
		return nil, badGuest("something else than a list")
	}
	var one json.RawMessage
	for d.More() {
		if len(out) >= most {
			return nil, badGuest("a list of more than %d", most)
		}
		if err := d.Decode(&one); err != nil {
			return nil, unreadable(err)
		}
		if len(one) > maxProcess {
			return nil, badGuest("a part of a list of more than %d bytes", maxProcess)
		}
		var v T
		if err := decodeOne(one, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if _, err := d.Token(); err != nil {
		return nil, unreadable(err)
	}
	return out, end(d)
}

// end refuses what follows a value.
func end(d *json.Decoder) error {
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badGuest("more than one answer")
	}
	return nil
}

// failing counts what is read and keeps the error that ended it.
type failing struct {
	r   io.Reader
	n   int64
	err error // but io.EOF
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.n += int64(n)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}
