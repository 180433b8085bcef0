//go:build !amd64

package precompiled

// Programs are those of this architecture.
var Programs []Program
