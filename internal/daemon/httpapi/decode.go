package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// decodeBytes decodes one JSON value, refusing unknown fields and anything
// that follows.
func decodeBytes(b []byte, out any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return jsonError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return sandbox.Errorf(sandbox.Invalid, "something follows the JSON value")
	}
	return nil
}

// jsonError names the field at fault where the decoder tells it.
func jsonError(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return sandbox.Errorf(sandbox.Invalid, "a %s is needed here", typ.Type).WithField(typ.Field, typ.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name = strings.Trim(name, `"`)
		return sandbox.Errorf(sandbox.Invalid, "the API has no such field").WithField("field", name).
			WithHint("api/openapi.yaml lists the fields of each request")
	}
	return sandbox.Errorf(sandbox.Invalid, "the request is not the JSON that the API expects: %w", err)
}

// query reads the query of a request. The first error stands; names that were
// not asked for are errors, too.
type query struct {
	v   url.Values
	ask map[string]bool
	err error
}

func newQuery(r *http.Request) *query {
	v, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{v: v, ask: map[string]bool{}}
	if err != nil {
		q.err = sandbox.Errorf(sandbox.Invalid, "the query cannot be read: %w", err)
	}
	return q
}

func (q *query) fail(name, value, sentence string) {
	if q.err == nil {
		q.err = sandbox.Errorf(sandbox.Invalid, "%s", sentence).WithField(name, value)
	}
}

func (q *query) text(name string) string {
	q.ask[name] = true
	vs := q.v[name]
	if len(vs) > 1 {
		q.fail(name, strings.Join(vs, ","), "this is given more than once")
	}
	if len(vs) == 0 {
		return ""
	}
	return vs[0]
}

// number reads a number that is not negative, 0 when it is left out.
func (q *query) number(name string) int64 {
	s := q.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		q.fail(name, s, "a whole number that is not negative is needed here")
	}
	return n
}

func (q *query) flag(name string) bool {
	switch s := q.text(name); s {
	case "", "0", "false":
		return false
	case "1", "true":
		return true
	default:
		q.fail(name, s, "this is 1 or 0")
		return false
	}
}

// path reads an absolute path inside the sandbox.
func (q *query) path(name string) string {
	p := q.text(name)
	if err := sandbox.CheckPath(name, p); err != nil && q.err == nil {
		q.err = err
	}
	return p
}

// done returns the first error.
func (q *query) done() error {
	for name := range q.v {
		if !q.ask[name] {
			q.fail("query", name, "the API has no such parameter here")
		}
	}
	return q.err
}

// noQuery refuses a query where there is none.
func noQuery(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	return newQuery(r).done()
}
