// Package wire is the language between the daemon (or the command line, when
// there is no daemon) and a keeper: HTTP in clear text over a unix socket in a
// 0700 directory, the keeper serving. It has no secret and no policy.
//
// The socket takes HTTP/2 and HTTP/1.1 and tells them by their first bytes.
// keeperclient speaks HTTP/2 for what is small and HTTP/1.1, with a connection
// for each request under way, to guests: it carries bodies at half the cost,
// and one that is not read holds up no other.
//
//	GET    /keeper/v1/hello                      -> Hello
//	POST   /keeper/v1/sandboxes                  Create -> Created; boots, starts and says hello to the guest
//	POST   /keeper/v1/sandboxes/{id}/claim       Claim -> Created; a parked one gets its name and says hello
//	GET    /keeper/v1/sandboxes                  -> []Status
//	GET    /keeper/v1/sandboxes/{id}             -> Status
//	GET    /keeper/v1/sandboxes/{id}/wait        -> Status, when it has ended
//	GET    /keeper/v1/sandboxes/{id}/stats       -> sandbox.Stats
//	POST   /keeper/v1/sandboxes/{id}/checkpoint  Checkpoint -> Checkpointed; writes an image of memory and files
//	GET    /keeper/v1/sandboxes/{id}/changes     -> the list of what the sandbox has changed in its root, as the guest's kernel tells it (internal/filetree)
//	DELETE /keeper/v1/sandboxes/{id}             kill, give everything back, forget -> Status; idempotent
//	POST   /keeper/v1/stop?drain=0|1             kill all (or refuse new ones and end when empty) -> 204
//	GET    /keeper/v1/probe                      -> []driver.Report
//	ANY    /guest/{id}/{generation}/v1/...       to the guest, as guest/wire says
//
// Descriptors (mounts) come over a second unix socket, "fds" beside the first:
// one SOCK_STREAM connection per batch, a single message of JSON FDTicket
// carrying the descriptors; the answer is one byte, 1. A ticket is taken by one
// create and lapses after a minute.
//
// Errors are a status of 400 or more with an ErrorBody.
package wire

import (
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Protocol is the version of this language.
const Protocol = 1

// Names of the sockets inside the keeper's directory.
const (
	SocketName   = "keeper.sock"
	FDSocketName = "fds.sock"
)

// Hello tells who serves.
type Hello struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build"`
	PID      int    `json:"pid"`
	// Instance changes with every keeper process; a daemon that comes back
	// tells by it whether its sandboxes can still be there.
	Instance string `json:"instance"`
	Draining bool   `json:"draining"`
}

// Create asks for a sandbox.
type Create struct {
	ID       sandbox.ID       `json:"id"`
	Boundary sandbox.Boundary `json:"boundary"`
	Root     driver.Root      `json:"root"`
	Guest    string           `json:"guest"`
	Mounts   []Mount          `json:"mounts,omitempty"`
	Limits   sandbox.Limits   `json:"limits"`
	Explicit driver.Explicit  `json:"explicit"`
	User     driver.User      `json:"user"`
	Hello    guest.Hello      `json:"hello"`
	// Image, when set, is the directory of an image, from which the sandbox is
	// restored instead of being started. Root, Guest, CPUs, memory and the
	// number of mounts are those of the checkpoint, and Hello is of a later
	// generation. Without a Hello.Start processes go on where they were.
	Image string `json:"image,omitempty"`
	// Files, when set, is the directory of an image of files alone, with which
	// the sandbox boots anew. Root is that of the checkpoint; limits may differ.
	Files string `json:"files,omitempty"`
	// Park, when set, has the sandbox wait for a Claim instead of saying hello to
	// it; of Hello only the hostname counts then.
	Park Park `json:"park,omitempty"`
}

// Park is how far a sandbox is that waits to be claimed. It serves nothing and
// has no name but the keeper's.
type Park string

// The ways to wait. One that is booted has run nothing and can still be restored
// from any image; in one that is ready the guest runs, started or restored from
// Create.Image, and has not been told who it is.
const (
	Booted Park = "booted"
	Ready  Park = "ready"
)

// Claim makes a parked sandbox somebody's: from then on it is known as As. All
// but Hello and Image must be as it was parked with, and the root's directory
// the same one still; anything else is [sandbox.Conflict], as is a sandbox that
// has ended or that another has claimed. After any other error nothing of it is
// left.
type Claim struct {
	As       sandbox.ID      `json:"as"`
	Root     driver.Root     `json:"root"`
	Guest    string          `json:"guest"`
	Limits   sandbox.Limits  `json:"limits"`
	Explicit driver.Explicit `json:"explicit"`
	Hello    guest.Hello     `json:"hello"`
	// Image is for one that was parked booted, as in Create.
	Image string `json:"image,omitempty"`
}

// Checkpoint asks for an image of a sandbox.
type Checkpoint struct {
	// Dir is an empty directory of mode 0700 that belongs to the installation.
	// When the request fails, what is in it means nothing.
	Dir string `json:"dir"`
	// Keep has the sandbox go on; else it is ended and given back, as by DELETE,
	// once the image is complete.
	Keep bool `json:"keep,omitempty"`
	// FilesOnly leaves memory out: what the image is of has its files and boots
	// anew.
	FilesOnly bool `json:"files_only,omitempty"`
	// Passing is an image that need not be on disk when the request is over, and
	// whose files are not counted: because it is used at once and then removed, or
	// because the caller does both.
	Passing bool `json:"passing,omitempty"`
	// Hello is of the next generation, under which the sandbox goes on when it
	// is kept, or when the checkpoint fails.
	Hello guest.Hello `json:"hello"`
}

// Checkpointed tells that an image is complete and on disk.
type Checkpointed struct {
	Status
	Files []driver.File `json:"files,omitempty"`
	// Stopped is how long a sandbox that was kept stood still, in nanoseconds.
	Stopped  time.Duration  `json:"stopped"`
	Timeline []sandbox.Step `json:"timeline"`
}

// Mount names a descriptor that came over the second socket.
type Mount struct {
	Ticket   string `json:"ticket"`
	Index    int    `json:"index"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

// FDTicket goes with descriptors over the second socket.
type FDTicket struct {
	Ticket string `json:"ticket"` // random, chosen by the sender
	Count  int    `json:"count"`
}

// Created is a sandbox that has answered hello.
type Created struct {
	Status
	Reply    guest.HelloReply `json:"reply"`
	Timeline []sandbox.Step   `json:"timeline"`
}

// Status is where one sandbox stands in the keeper.
type Status struct {
	ID         sandbox.ID            `json:"id"`
	Boundary   sandbox.Boundary      `json:"boundary"`
	Generation uint64                `json:"generation"`
	Running    bool                  `json:"running"`
	StartedAt  time.Time             `json:"started_at"`
	Limits     []sandbox.LimitStatus `json:"limits,omitempty"`
	CPUsSeen   int                   `json:"cpus_seen,omitempty"`
	// Restore is of a sandbox that came from an image and has had its hello.
	Restore *sandbox.Restore `json:"restore,omitempty"`
	Exit    *sandbox.Exit    `json:"exit,omitempty"`
	Parked  Park             `json:"parked,omitempty"` // it waits to be claimed
	// Fault says why the keeper itself ended the sandbox, for instance frames
	// on a channel that no honest guest sends.
	Fault string `json:"fault,omitempty"`
}

// ErrorBody wraps an error in a reply.
type ErrorBody struct {
	Error *sandbox.Error `json:"error"`
}
