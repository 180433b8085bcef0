package e2b

import (
	"errors"
	"net/http"
	"time"
)

// authorize checks that a request may reach the sandbox whose token is given.
func authorize(r *http.Request, token string, now time.Time) error {
	if r.URL.Path == "/health" && r.Method == http.MethodGet {
		return nil
	}
	if got := r.Header.Get(headerToken); got != "" {
		if !sameToken(got, token) {
			return errors.New("the access token is not that of the sandbox")
		}
		return nil
	}
	if r.URL.Path == "/files" && (r.Method == http.MethodGet || r.Method == http.MethodPost) {
		return checkSignature(r, token, now)
	}
	return errors.New("the access token is missing: send it as " + headerToken)
}

// cors lets pages of any origin ask, as the access token is what counts: a
// browser sends none by itself. It has answered when it returns true.
func cors(w http.ResponseWriter, r *http.Request) (answered bool) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
	h.Set("Access-Control-Allow-Headers", "*, Authorization")
	h.Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(http.StatusNoContent)
	return true
}
