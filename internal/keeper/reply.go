package keeper

import (
	"encoding/json"
	"io"
	"net/http"
	"os"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxBody bounds the JSON body of a request.
const maxBody = 8 << 20

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// writeError answers with err. The daemon is the reader and logs causes, so an
// internal error carries its cause in the message.
func writeError(w http.ResponseWriter, err error) {
	e := sandbox.AsError(err)
	if cause := e.Unwrap(); e.Kind == sandbox.Internal && e.Message == "internal error" && cause != nil {
		c := *e
		c.Message = "internal error: " + cause.Error()
		e = &c
	}
	writeJSON(w, guest.Status(e.Kind), wire.ErrorBody{Error: e})
}

func readJSON(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return sandbox.Errorf(sandbox.Canceled, "the request ended early: %w", err)
	}
	if len(b) > maxBody {
		return sandbox.Errorf(sandbox.Invalid, "the request has more than %d bytes", maxBody)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the request cannot be understood: %w", err)
	}
	return nil
}

func pid() int { return os.Getpid() }
