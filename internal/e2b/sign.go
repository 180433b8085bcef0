package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The operations that a signature may allow.
const (
	opRead  = "read"
	opWrite = "write"
)

// Signature returns what a URL for a file carries in place of an access token:
// it allows one operation ("read" or "write") on one path, as user, until
// expiry in unix seconds; an empty expiry is for ever.
func Signature(path, operation, user, token, expiry string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiry != "" {
		text += ":" + expiry
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// checkSignature checks the signature of a request for a file. Its errors are
// compared by clients, in this order.
func checkSignature(r *http.Request, token string, now time.Time) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || !q.Has("signature") {
		return errors.New("missing signature query parameter")
	}
	operation := opRead
	if r.Method == http.MethodPost {
		operation = opWrite
	}
	expiry := q.Get("signature_expiration")
	want := Signature(q.Get("path"), operation, q.Get("username"), token, expiry)
	if subtle.ConstantTimeCompare([]byte(want), []byte(q.Get("signature"))) != 1 {
		return errors.New("invalid signature")
	}
	if expiry == "" {
		return nil
	}
	at, err := strconv.ParseInt(expiry, 10, 64)
	if err != nil {
		return errors.New("invalid signature")
	}
	if now.Unix() > at {
		return errors.New("signature is already expired")
	}
	return nil
}

// sameToken compares access tokens in a time that tells nothing of them, their
// length included.
func sameToken(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
