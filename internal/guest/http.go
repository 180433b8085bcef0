package guest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// errEarly is answered with 425, as wire says.
var errEarly = sandbox.Errorf(sandbox.Unavailable, "the guest waits for hello")

// maxJSON bounds request bodies that are not byte streams.
const maxJSON = 8 << 20

// maxPooled is the size of a data buffer.
const maxPooled = 512 << 10

// buffers holds data buffers while data flows; an idle guest has none.
var buffers = sync.Pool{New: func() any { return new([wire.HeaderLen + maxPooled]byte) }}

func status(err *sandbox.Error) int {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return http.StatusInsufficientStorage
	case errors.Is(err, errEarly):
		return http.StatusTooEarly
	}
	return wire.Status(err.Kind)
}

// reply writes err, if any. A reply that has begun is broken off instead, so
// that the host never takes a part for the whole.
func reply(w http.ResponseWriter, err error) {
	if err == nil {
		return
	}
	if errors.Is(err, errBroken) {
		panic(http.ErrAbortHandler)
	}
	e := sandbox.AsError(err)
	if e.Kind == sandbox.Internal && errors.Unwrap(e) != nil {
		// The cause helps whoever reads it, and the guest has no secrets from its host.
		e = sandbox.Errorf(sandbox.Internal, "the guest failed: %v", errors.Unwrap(e))
	}
	writeJSON(w, status(e), wire.ErrorBody{Error: e})
}

// errBroken tells that the reply had begun when it failed.
var errBroken = errors.New("guest: reply broken off")

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b, code = []byte(`{"error":{"kind":"internal","message":"reply cannot be encoded"}}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	w.Write(b)
}

func (q *request) json(v any) error {
	writeJSON(q.w, http.StatusOK, v)
	return nil
}

func noContent(q *request) error {
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (q *request) decode(v any) error {
	b, err := io.ReadAll(io.LimitReader(q.Body, maxJSON+1))
	if err != nil {
		return sandbox.Errorf(sandbox.Canceled, "the request ended early: %w", err)
	}
	if len(b) > maxJSON {
		return sandbox.Errorf(sandbox.Invalid, "a request has at most %d bytes", maxJSON)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the request is not what the protocol says: %v", err)
	}
	return nil
}

// number returns a query parameter that is a number, 0 when it is absent.
func (q *request) number(name string) (int64, error) {
	v := q.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, sandbox.Errorf(sandbox.Invalid, "not a number from 0 on").WithField(name, v)
	}
	return n, nil
}
