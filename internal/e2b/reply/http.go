package reply

import (
	"encoding/json"
	"net/http"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// JSON answers with a value.
func JSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(http.ErrAbortHandler) // our own types: cannot be
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the caller may have gone
}

// failure is the body of an error; clients look at its code.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Fail answers with an error.
func Fail(w http.ResponseWriter, status int, message string) {
	for _, k := range []string{"Content-Length", "Content-Encoding", "Content-Disposition", "Content-Range", "Last-Modified"} {
		w.Header().Del(k)
	}
	JSON(w, status, failure{status, message})
}

// Status is the status that carries err.
func Status(err error) int {
	e := sandbox.AsError(err)
	if IsUser(e) {
		return http.StatusUnauthorized
	}
	return wire.Status(e.Kind)
}

// IsGone reports whether e says that the sandbox has ended.
func IsGone(e *sandbox.Error) bool { return e.Kind == sandbox.Unavailable && e.Field == "sandbox" }

// gone is the body about a sandbox that does not answer.
type gone struct {
	Sandbox string `json:"sandboxId"`
	Message string `json:"message"`
	Port    int    `json:"port,omitempty"`
	Code    int    `json:"code"`
}

// NoSandbox answers for a sandbox that is not there, or no more: 502 is the one
// sign of that which clients know.
func NoSandbox(w http.ResponseWriter, id string) {
	JSON(w, http.StatusBadGateway, gone{Sandbox: id, Message: "The sandbox was not found", Code: http.StatusBadGateway})
}

// NoPort answers for a port of a living sandbox on which nothing can be
// reached.
func NoPort(w http.ResponseWriter, id string, port int) {
	JSON(w, http.StatusBadGateway, gone{id, "The sandbox is running but port is not open", port, http.StatusBadGateway})
}
