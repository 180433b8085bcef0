// Package build tells which build of Belljar a program belongs to. The three
// programs are installed together and refuse to work with one another when
// their IDs differ.
package build

import (
	"runtime"
	"runtime/debug"
	"sync"
)

// Stamp may be set by the linker (-X); the Makefile sets it to a digest of the
// source tree. Programs built without it use what the Go tool recorded.
var Stamp string

// Version is the release that this source belongs to.
const Version = "0.1.0-dev"

// ID identifies the build: equal in programs that were built together from the
// same source. It is safe for concurrent use.
var ID = sync.OnceValue(func() string {
	if Stamp != "" {
		return Version + "+" + Stamp
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if rev == "" {
		return Version + "+" + runtime.Version()
	}
	return Version + "+" + rev[:min(12, len(rev))] + dirty
})
