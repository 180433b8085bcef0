package wire

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/belljar-sh/belljar/sandbox"
)

// StatusCanceled is the status of a request whose caller has gone, as others
// use it.
const StatusCanceled = 499

// Status is the HTTP status that carries an error of kind k, in every language
// of ours: to guests, to keepers and in the public API. A kind that does not
// exist is an internal error.
func Status(k sandbox.Kind) int {
	switch k { // a table would be built before main
	case sandbox.Invalid:
		return http.StatusBadRequest
	case sandbox.NotFound:
		return http.StatusNotFound
	case sandbox.AlreadyExists, sandbox.Conflict:
		return http.StatusConflict
	case sandbox.Unsupported:
		return http.StatusNotImplemented
	case sandbox.Denied:
		return http.StatusForbidden
	case sandbox.ResourceExhausted:
		return http.StatusTooManyRequests
	case sandbox.Unavailable:
		return http.StatusServiceUnavailable
	case sandbox.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case sandbox.Canceled:
		return StatusCanceled
	}
	return http.StatusInternalServerError
}

// Body is a JSON body of a request.
type Body struct {
	*bytes.Reader
	Size   int64
	Header http.Header
}

// JSONBody encodes the body of a request, whatever it is sent to.
func JSONBody(v any) (Body, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return Body{}, sandbox.Errorf(sandbox.Invalid, "the request cannot be encoded: %w", err)
	}
	return Body{bytes.NewReader(b), int64(len(b)), http.Header{"Content-Type": {"application/json"}}}, nil
}
