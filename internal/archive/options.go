package archive

import (
	"errors"
	"time"
)

// Devices says what to do with device nodes. FIFOs are never made either, but
// left out and reported in both cases.
type Devices int

// ErrDevice is the cause of the error for an archive with a device node.
var ErrDevice = errors.New("a device node")

// The rules for device nodes.
const (
	DevicesRefuse Devices = iota // an error that names the entry
	DevicesSkip                  // leave them out and report them
)

// Options says how to unpack. The zero value is the strictest rule for a tree
// that belongs to the caller.
type Options struct {
	Limits  Limits
	Links   Links
	Devices Devices

	// Umask is taken off every mode.
	Umask uint32
	// Owners gives entries the owners that they name, 0 to 65535; others become
	// 65534. It needs CAP_CHOWN. Without it everything belongs to the caller.
	Owners bool
	// Setuid keeps set-user-ID and set-group-ID bits of files of owner 0, and
	// set-group-ID of directories. Only for a tree that no user of the host can
	// reach.
	Setuid bool
	// Sticky keeps the sticky bit of directories.
	Sticky bool

	// Progress, when set, is told now and then how far the work is.
	Progress func(Progress)

	// single demands that everything lies below one name, unless the stream
	// begins with an entry for the tree itself; links may then not climb out of
	// that name.
	single bool
}

// Progress tells how far a packing or unpacking is.
type Progress struct {
	Entries int64  // done
	Bytes   int64  // of content, done
	Name    string // being worked on; as hostile as the archive: escape before printing
}

// Skip is one entry that was left out, or an attribute that was changed, and
// why.
type Skip struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// maxSkips bounds the entries that a [Summary] lists.
const maxSkips = 100

// Summary tells what was packed or unpacked.
type Summary struct {
	Entries int64
	Bytes   int64 // content of regular files
	Skips   []Skip
	Skipped int64 // how many there were; Skips lists the first 100

	// Root tells that the stream had an entry for the tree itself (".").
	Root bool

	top string // first component of the first entry
}

func (s *Summary) skip(name, reason string) {
	if s.Skipped++; len(s.Skips) < maxSkips {
		s.Skips = append(s.Skips, Skip{name, reason})
	}
}

// ticker tells progress at most ten times a second.
type ticker struct {
	report func(Progress)
	next   time.Time
}

func (t *ticker) tick(p Progress, last bool) {
	if t.report == nil {
		return
	}
	if now := time.Now(); last || now.After(t.next) {
		t.next = now.Add(100 * time.Millisecond)
		t.report(p)
	}
}
