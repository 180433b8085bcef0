//go:build !amd64 && !arm64

package precompiled

// Sentry and Gofer are the programs of this architecture, nil where there is
// none.
var Sentry, Gofer *Program
