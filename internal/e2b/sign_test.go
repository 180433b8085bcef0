package e2b

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"
)

const (
	vectorToken = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	vectorSign  = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
)

func TestSignature(t *testing.T) {
	if got := Signature("hello.txt", "read", "user", vectorToken, ""); got != vectorSign {
		t.Errorf("got %s, want %s", got, vectorSign)
	}
}

func signed(path, user, signature, expiry string) string {
	q := url.Values{"path": {path}, "username": {user}, "signature": {signature}}
	if expiry != "" {
		q.Set("signature_expiration", expiry)
	}
	return "/files?" + q.Encode()
}

func TestAuthorize(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	sign := func(op, expiry string) string { return Signature("hello.txt", op, "user", vectorToken, expiry) }
	const missing, bad, old = "missing signature query parameter", "invalid signature", "signature is already expired"
	const noToken, wrongToken = "the access token is missing: send it as X-Access-Token", "the access token is not that of the sandbox"
	tests := []struct {
		name, method, target, header, want string
	}{
		{"health is open", "GET", "/health", "", ""},
		{"but only to GET", "POST", "/health", "", noToken},
		{"the token", "POST", "/process.Process/List", vectorToken, ""},
		{"another token", "POST", "/process.Process/List", vectorToken + "x", wrongToken},
		{"no token", "POST", "/process.Process/List", "", noToken},
		{"no token for metrics", "GET", "/metrics", "", noToken},
		{"the token for a file", "GET", "/files?path=x", vectorToken, ""},
		{"a wrong token is not saved by a signature", "GET", signed("hello.txt", "user", vectorSign, ""), "x", wrongToken},
		{"no signature", "GET", "/files?path=hello.txt", "", missing},
		{"the vector", "GET", signed("hello.txt", "user", vectorSign, ""), "", ""},
		{"of another operation", "POST", signed("hello.txt", "user", vectorSign, ""), "", bad},
		{"of another path", "GET", signed("hello.txt/", "user", vectorSign, ""), "", bad},
		{"of another user", "GET", signed("hello.txt", "root", vectorSign, ""), "", bad},
		{"of no user", "GET", signed("hello.txt", "", vectorSign, ""), "", bad},
		{"with an expiry added", "GET", signed("hello.txt", "user", vectorSign, "1000001"), "", bad},
		{"empty", "GET", signed("hello.txt", "user", "", ""), "", bad},
		{"padded", "GET", signed("hello.txt", "user", vectorSign+"=", ""), "", bad},
		{"for writing", "POST", signed("hello.txt", "user", sign("write", ""), ""), "", ""},
		{"until later", "GET", signed("hello.txt", "user", sign("read", "1000000"), "1000000"), "", ""},
		{"until before", "GET", signed("hello.txt", "user", sign("read", "999999"), "999999"), "", old},
		{"until before, and wrong", "GET", signed("hello.txt", "user", "v1_x", "999999"), "", bad},
		{"until no time", "GET", signed("hello.txt", "user", sign("read", "soon"), "soon"), "", bad},
		{"on no file", "GET", "/metrics?signature=" + url.QueryEscape(vectorSign), "", noToken},
		{"on compose", "POST", "/files/compose?signature=" + url.QueryEscape(vectorSign), "", noToken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.target, nil)
			if tt.header != "" {
				r.Header.Set(headerToken, tt.header)
			}
			got := ""
			if err := authorize(r, vectorToken, now); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzCheckSignature: no query is let in but one that carries the signature of
// what it asks for.
func FuzzCheckSignature(f *testing.F) {
	f.Add("path=hello.txt&username=user&signature="+url.QueryEscape(vectorSign), false)
	f.Add("signature=v1_&signature_expiration=1", true)
	f.Add("%zz&signature", false)
	f.Fuzz(func(t *testing.T, query string, write bool) {
		method, op := http.MethodGet, opRead
		if write {
			method, op = http.MethodPost, opWrite
		}
		r := &http.Request{Method: method, URL: &url.URL{Path: "/files", RawQuery: query}}
		if checkSignature(r, vectorToken, time.Unix(0, 0)) != nil {
			return
		}
		q := r.URL.Query()
		if q.Get("signature") != Signature(q.Get("path"), op, q.Get("username"), vectorToken, q.Get("signature_expiration")) {
			t.Errorf("%q is let in", query)
		}
	})
}
