// Package api holds the source of truth of the public API, openapi.yaml. Types
// for Go are generated of it into internal/gen/api; types that are ours already
// (package sandbox, guest/wire, driver) are named in it by x-go-type.
package api

import _ "embed"

//go:generate go tool -modfile=../tools/go.mod oapi-codegen -config oapi-codegen.yaml openapi.yaml

// Document is openapi.yaml.
//
//go:embed openapi.yaml
var Document []byte
