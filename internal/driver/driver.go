package driver

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// Driver runs sandboxes behind one boundary. Implementations are safe for
// concurrent use as doc.go says.
type Driver interface {
	// Boundary names what this driver puts between guest and host.
	Boundary() sandbox.Boundary

	// Probe tells whether this host can run the driver and what it can do
	// here. It acquires nothing and takes well under a second.
	Probe(ctx context.Context) Report

	// Handle names everything that Create would acquire for req outside
	// req.Dir. It touches nothing.
	Handle(req *CreateRequest) (Handle, error)

	// Create acquires what the sandbox needs and boots its kernel, so that
	// Start has little left to do. No guest code runs before Start. On error
	// nothing is left.
	Create(ctx context.Context, req *CreateRequest) (Instance, error)

	// Reap removes whatever is left of the sandbox that h names: processes,
	// mounts, cgroups, files outside its Dir. It is idempotent and works after
	// a crash at any point of Create, Start or Reap itself. It returns nil only
	// when it has seen that nothing is left.
	Reap(ctx context.Context, h Handle) error
}

// Instance is the live handle of one sandbox.
type Instance interface {
	// Start runs belljar-guest as PID 1 inside. Once only.
	Start(ctx context.Context) error

	// Channels returns the two streams. The caller owns them after the first
	// call; later calls return the same values.
	Channels() Channels

	// Limits tells what is in force.
	Limits() []sandbox.LimitStatus

	// CPUsSeen is the number of processors that a program inside counts.
	CPUsSeen() int

	// Kill ends every process of the sandbox and returns when none is left.
	Kill(ctx context.Context) error

	// Wait blocks until the sandbox has ended and tells how. It may be called
	// by many goroutines; all get the same answer.
	Wait(ctx context.Context) (sandbox.Exit, error)

	// Stats counts on the host's side.
	Stats(ctx context.Context) (sandbox.Stats, error)

	// Destroy kills and gives back everything, as Reap with its handle does.
	Destroy(ctx context.Context) error
}

// Resizer is an optional interface of an [Instance] whose limits can change
// while it runs.
type Resizer interface {
	Resize(ctx context.Context, l sandbox.Limits) ([]sandbox.LimitStatus, error)
}

// Checkpointer is an optional interface of an [Instance] that can write its
// memory and file changes into dir (empty, 0700); that they reach the disk is for
// the caller to see to. With leaveRunning it goes on afterwards; else it stays
// stopped until it is killed, or told to Continue after all. When it fails, it
// goes on.
type Checkpointer interface {
	Checkpoint(ctx context.Context, dir string, leaveRunning bool) error
	Continue(ctx context.Context) error
}

// Restorer is an optional interface of an [Instance] that can be started from
// what a [Checkpointer] wrote, in the place of Start. It must have been created
// from a request like that of the checkpoint's instance in template, guest,
// mounts, CPUs and memory. Its channels are new: the guest finds them at the
// descriptors that it knows.
//
// When this host is not as it was (a file of Root that the memory refers to is
// another one, the boundary's version or the processor differs), nothing is
// restored and the error is a [sandbox.Conflict] whose Field says what.
type Restorer interface {
	Restore(ctx context.Context, dir string) error

	// Sources tells where random bytes and the time inside come from once the
	// instance has been restored.
	Sources() (entropy, clock Source)
}

// FileSaver is an optional interface of an [Instance] that can write what it has
// changed in its root, and nothing of its memory, into dir (empty, 0700), with
// the names, owners, modes, times, links and extended attributes of files. What
// is mounted in the root is left out. For the rest it is as [Checkpointer] says.
// An instance whose request names dir as Files begins with those files.
type FileSaver interface {
	SaveFiles(ctx context.Context, dir string, leaveRunning bool) error
	Continue(ctx context.Context) error
}

// TreeName is the file of what a [FileSaver] wrote that tells the same as a
// [FileLister].
const TreeName = "tree"

// FileLister is an optional interface of an [Instance] that goes on while it
// tells what it has changed in its root. What it tells is in a file without a
// name, which is the caller's to close, and has the form that package
// internal/filetree reads. It is the guest's word: no more than bytes to whoever
// passes it on.
type FileLister interface {
	ListFiles(ctx context.Context) (*os.File, error)
}

// File is one file of what a [Checkpointer] wrote.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// Channels are the two streams between host and guest.
type Channels struct {
	Down net.Conn // host asks, guest serves
	Up   net.Conn // guest asks, host serves
}

// Handle is the durable name of what an instance holds on the host. Data is
// the driver's own and opaque to others.
type Handle struct {
	Boundary sandbox.Boundary `json:"boundary"`
	ID       sandbox.ID       `json:"id"`
	Dir      string           `json:"dir"`
	Data     json.RawMessage  `json:"data,omitempty"`
}

// CreateRequest is one sandbox to build. All paths are the installation's own
// or were opened by the caller; none comes from a guest.
type CreateRequest struct {
	ID       sandbox.ID
	Dir      string         // 0700, empty, on a local file system
	Root     Root           // what the guest sees as /
	Guest    string         // path of belljar-guest on the host, run as PID 1
	Mounts   []Mount        // the caller's directories
	Limits   sandbox.Limits // merged with defaults: no field is zero
	Explicit Explicit       // which limits the caller asked for
	Hostname string
	// Files, when set, is a directory into which a [FileSaver] of the same
	// boundary, root and Shifted has written: the sandbox boots anew with those
	// changes made. It is not needed any more once Start has returned. Limits
	// may be others than those of the instance that was saved.
	Files string
	User  User // whom files on mounts seem to belong to, and the default user inside

	// Trace, when set, is told of each step as it ends. It may be called from
	// any goroutine.
	Trace func(name string, start time.Time, took time.Duration)
}

// User is an identity inside the sandbox.
type User struct {
	UID, GID uint32
}

// Explicit tells which limits were asked for rather than taken from defaults.
type Explicit struct {
	CPUs, Memory, Processes, Disk, OpenFiles bool
}

// Root is a root file system. The guest may write anywhere in it; changes
// stay with the sandbox, bounded by Limits.DiskBytes.
type Root struct {
	// Path is a directory that is the read-only lower layer.
	Path string
	// Binds are read-only host directories or files laid over Path, in order;
	// their targets exist in Path.
	Binds []Bind
	// Shifted tells that Path was unpacked with true owners for ids 0 to
	// 65535; otherwise owners of the host appear as nobody.
	Shifted bool
	// Digest, where it is not empty, names what is in Path: any directory with
	// this digest has the same files. It is empty where Path or Binds are the
	// host's own.
	Digest string
	// Setuid tells that set-user-ID files in Path are meant to work.
	Setuid bool
}

// Bind is a host path of the installation's choosing, seen read-only inside.
type Bind struct {
	Source string
	Target string
}

// Mount is a caller's directory or regular file. File is an open descriptor
// (O_PATH is enough); the driver duplicates what it keeps.
type Mount struct {
	File     *os.File
	Target   string // absolute, cleaned
	ReadOnly bool
}

// Verdict is the answer of a probe.
type Verdict string

// The verdicts.
const (
	Yes        Verdict = "yes"
	No         Verdict = "no"
	CannotTell Verdict = "cannot tell"
)

// Check is one question to the host and its answer.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	Remedy  string  `json:"remedy,omitempty"`
	// Needed tells that without it the driver does not run at all.
	Needed bool `json:"needed"`
}

// Report is what a driver can do on this host.
type Report struct {
	Boundary     sandbox.Boundary `json:"boundary"`
	Available    Verdict          `json:"available"`
	Reason       string           `json:"reason,omitempty"`
	Capabilities Capabilities     `json:"capabilities"`
	Checks       []Check          `json:"checks"`
}

// Capabilities are facts about a driver on this host.
type Capabilities struct {
	MemoryCheckpoint bool   `json:"memory_checkpoint"`
	FileSnapshot     bool   `json:"file_snapshot"`
	Pause            bool   `json:"pause"`
	Resize           bool   `json:"resize"`
	Setuid           bool   `json:"setuid"`     // sudo can work inside
	MultiUser        bool   `json:"multi_user"` // more than one uid inside
	Entropy          Source `json:"entropy"`
	Clock            Source `json:"clock"`
	Nested           bool   `json:"nested"` // containers inside
	GPU              bool   `json:"gpu"`
}

// Source tells where randomness or time inside comes from after a restore.
type Source = sandbox.Source

// The sources, see [sandbox.HostLive] and [sandbox.GuestState].
const (
	HostLive   = sandbox.HostLive
	GuestState = sandbox.GuestState
)
