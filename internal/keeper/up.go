package keeper

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/belljar-sh/belljar/internal/channel"
)

// DefaultDeny is the rule by which a keeper without a gateway refuses what a
// guest asks for.
const DefaultDeny = "default-deny"

// denyAll answers every CONNECT of a guest: nothing leaves without a gateway.
func (b *box) denyAll() http.Handler {
	answer, err := json.Marshal(channel.Refusal{
		Rule:   DefaultDeny,
		Reason: "no egress gateway serves this sandbox, so nothing may leave it",
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.refused.Add(1)
		if err != nil {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		w.Write(answer)
	})
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
