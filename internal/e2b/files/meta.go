package files

import (
	"errors"
	"net/http"
	"strings"
)

// Bounds on the metadata of a file, which becomes extended attributes.
const (
	maxMetaKey   = 246
	maxMetaTotal = 4096
	metaPrefix   = "X-Metadata-"
)

// parseMeta reads the metadata of an upload from its headers.
func parseMeta(h http.Header) (map[string]string, error) {
	var out map[string]string
	total := 0
	for k, vs := range h {
		key, ok := strings.CutPrefix(k, metaPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		v := strings.Join(vs, ",")
		if key == "" || len(key) > maxMetaKey || !printable(key) {
			return nil, errors.New("a key of metadata has 1 to 246 printable characters")
		}
		if !printable(v) {
			return nil, errors.New("a value of metadata has only printable characters of ASCII")
		}
		if total += len(key) + len(v); total > maxMetaTotal {
			return nil, errors.New("metadata has at most 4096 bytes")
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = v
	}
	return out, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
