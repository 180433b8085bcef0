package sandbox

import (
	"strings"
	"time"
)

// SnapshotKind tells what an image holds.
type SnapshotKind string

// The kinds of image.
const (
	KindMemory    SnapshotKind = "memory"    // memory and file changes: processes go on
	KindFiles     SnapshotKind = "files"     // file changes alone: a sandbox boots anew with them
	KindDirectory SnapshotKind = "directory" // one directory
)

// Valid reports whether k is one of the kinds above.
func (k SnapshotKind) Valid() bool {
	return k == KindMemory || k == KindFiles || k == KindDirectory
}

// Snapshot is the record of one snapshot: what was saved and what a sandbox that
// starts from it is like. It is a value.
type Snapshot struct {
	ID       ID           `json:"id"`
	Names    []string     `json:"names"` // each NAME:TAG
	Kind     SnapshotKind `json:"kind"`
	Sandbox  ID           `json:"sandbox"` // that it was taken of
	Template string       `json:"template"`
	Boundary Boundary     `json:"boundary"`
	// CPUs and MemoryBytes are those of the sandbox. One that starts from a
	// memory snapshot has the same.
	CPUs        float64   `json:"cpus,omitempty"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	Dir         string    `json:"dir,omitempty"` // inside, of a snapshot of a directory
	Build       string    `json:"build"`         // of the programs that wrote it
	CreatedAt   time.Time `json:"created_at"`
	SizeBytes   int64     `json:"size_bytes"` // of its files
	// Stopped is how long the sandbox stood still for it, in nanoseconds; known
	// to whoever took it.
	Stopped time.Duration `json:"stopped,omitempty"`
	// Problem says why no sandbox can start from it now; empty: one can.
	Problem string `json:"problem,omitempty"`
}

// DefaultTag is the tag of a snapshot's name that has none.
const DefaultTag = "latest"

// SnapshotName returns s, which is NAME or NAME:TAG, as NAME:TAG, or an
// [Invalid] error. Both parts are as [CheckName] says.
func SnapshotName(s string) (string, error) {
	name, tag, tagged := strings.Cut(s, ":")
	if !tagged {
		tag = DefaultTag
	}
	if CheckName("name", name) != nil || CheckName("tag", tag) != nil {
		return "", Errorf(Invalid, "a snapshot's name is NAME or NAME:TAG, each of 1 to 63 letters, digits, '_', '.' or '-' beginning with a letter or digit").
			WithField("name", s)
	}
	return name + ":" + tag, nil
}
