// Package wire is the language between host and guest on the down channel:
// HTTP/2 requests with JSON bodies, and byte streams cut into frames. The host
// is the client. Both ends import this package; it imports the standard
// library and sandbox only.
//
// # Requests
//
// Every request carries [HeaderGeneration]; a guest answers 409 to any other
// generation than the one its last hello set. Before hello everything but
// hello and prepare is answered 425.
//
//	POST   /v1/hello                       Hello -> HelloReply; after a restore the hooks have been run
//	POST   /v1/prepare                     Hello -> HelloReply; before the first hello: does what needs no identity, and rehearses the rest with it; of no effect later
//	POST   /v1/quiesce                     -> 204; ends streams, syncs; with Belljar-Seam, HTTP/2 ends at that seam (package channel)
//	GET    /v1/ping                        -> 204
//	GET    /v1/metrics                     -> Metrics
//	GET    /v1/env                         -> the environment that hello gave, a JSON object of strings
//	POST   /v1/processes                   Start -> Process
//	POST   /v1/processes?output=1          Start -> a JSON frame with the Process, then its output from the beginning
//	GET    /v1/processes                   -> []Process
//	GET    /v1/processes/{id}              -> Process
//	GET    /v1/processes/{id}/output?stdout=N&stderr=N   -> frames from these offsets on, to the exit frame
//	POST   /v1/processes/{id}/ack          Ack -> 204
//	POST   /v1/processes/{id}/stdin?offset=N   raw bytes -> StdinReply; Belljar-Eof: 1 closes after them; without an offset they come after what has been taken
//	POST   /v1/processes/{id}/resize       PTYSize -> 204
//	POST   /v1/processes/{id}/signal       Signal -> 204
//	DELETE /v1/processes/{id}              kill the whole tree; 204 when nothing of it is left; forgets it
//	GET    /v1/files?path=&user=           bytes; Range is honoured
//	PUT    /v1/files?path=&user=&mode=     bytes -> Entry; parents are made, the old content stays until all has arrived
//	GET    /v1/stat?path=&user=&resolve=   -> Entry; resolve=1 has links followed, see Entry.Resolved
//	GET    /v1/dir?path=&user=&depth=&resolve=   -> []Entry
//	POST   /v1/mkdir?path=&user=           -> Entry
//	POST   /v1/move?path=&to=&user=&resolve=   -> Entry
//	DELETE /v1/files?path=&user=           -> 204; recursive, links are not followed
//	GET    /v1/tar?path=&user=             tar stream of a file or directory, see [LeftOut]
//	PUT    /v1/tar?path=&user=             tar stream, unpacked beneath path
//	GET    /v1/watch?path=&user=&recursive=&local=   -> frames of JSON WatchEvent; local=1 refuses file systems that others change unseen
//
// An error is a status of 400 or more with an ErrorBody.
//
// # Output
//
// Output is numbered by byte from 0, per stream. A reader says where to begin.
// With a reader attached the program is held back when it is ahead of the last
// Ack by the size of the buffer; with none the oldest bytes go, and the next
// reader gets a gap frame with their count. So nothing is lost silently. Before
// the first reader, and after the last has gone, the program is held back for
// [ReaderGrace] all the same: a reader that comes in time loses nothing.
//
// # Leases
//
// A process whose Start has a Lease belongs to its readers. When none has been
// attached for so long, before the first or after the last, the process is
// killed with all its descendants and its exit has the reason
// [sandbox.ReasonOrphaned]. A reader that comes back in time, after a restart of
// the daemon for instance, renews the lease. Without one a process lives on
// whoever leaves.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// Protocol is the version of this language; host and guest must agree.
const Protocol = 1

// ReaderGrace is how long a program is held back for a reader that has yet to
// come, or to come back.
const ReaderGrace = 30 * time.Second

// Header names.
const (
	HeaderGeneration = "Belljar-Generation"
	HeaderEOF        = "Belljar-Eof"
	HeaderSeam       = "Belljar-Seam" // hexadecimal
	// HeaderMeta of PUT /v1/files is a JSON object of strings: the user extended
	// attributes that the file gets, see Entry.Meta. A file that is put without
	// it has none.
	HeaderMeta = "Belljar-Meta"
)

// Hello gives a booted or restored guest its identity.
type Hello struct {
	Protocol   int               `json:"protocol"`
	Build      string            `json:"build"`
	SandboxID  sandbox.ID        `json:"sandbox_id"`
	Generation uint64            `json:"generation"`
	Token      string            `json:"token"` // of this generation, for programs inside; authority on the host only
	Hostname   string            `json:"hostname"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user"` // default user of processes and files
	Workdir    string            `json:"workdir,omitempty"`
	Time       time.Time         `json:"time"`
	Limits     GuestLimits       `json:"limits"`
	// MachineID is what /etc/machine-id is to say, 32 hexadecimal digits. The
	// guest writes it where it is another one than in the last hello.
	MachineID string `json:"machine_id,omitempty"`
	// Restored tells a guest that it comes from a memory image, and Entropy and
	// Clock where its random bytes and its time come from now. It answers with
	// a [Restore].
	Restored bool           `json:"restored,omitempty"`
	Entropy  sandbox.Source `json:"entropy,omitempty"`
	Clock    sandbox.Source `json:"clock,omitempty"`
	// Start, when set, is begun as part of hello, which saves a round trip.
	Start *Start `json:"start,omitempty"`
}

// GuestLimits are held inside, by the guest.
type GuestLimits struct {
	Processes   int64 `json:"processes"`
	OpenFiles   int64 `json:"open_files"`
	OutputBytes int64 `json:"output_bytes"` // buffer per stream
}

// HelloReply is what the guest says of itself: unverified, never an input to
// policy.
type HelloReply struct {
	Protocol int      `json:"protocol"`
	Build    string   `json:"build"`
	BootID   string   `json:"boot_id"`
	Users    []string `json:"users"`
	Process  *Process `json:"process,omitempty"` // of Hello.Start
	// StartError says why Hello.Start failed; hello itself succeeded.
	StartError *sandbox.Error `json:"start_error,omitempty"`
	Restore    *Restore       `json:"restore,omitempty"` // of Hello.Restored
}

// Restore is what a guest that comes from a memory image declares. A guest whose
// random bytes are those of before the image refuses the hello instead.
type Restore struct {
	Generation uint64         `json:"generation"`
	Entropy    sandbox.Source `json:"entropy"`
	Clock      sandbox.Source `json:"clock"`
	// Draw is the SHA-256, in hexadecimal, of 32 bytes that the guest drew from
	// its kernel after the restore: no two restores have the same.
	Draw string `json:"draw"`
	// Now is the guest's clock as the hello arrived, and Took how long the guest
	// had the hello, in nanoseconds.
	Now  time.Time     `json:"now"`
	Took time.Duration `json:"took"`
	// Hooks are the programs of [HookDir] that were run, in their order, and
	// HooksLeft those that were not, for want of time or because there are more
	// than [MaxHooks].
	Hooks     []Hook `json:"hooks,omitempty"`
	HooksLeft int    `json:"hooks_left,omitempty"`
}

// Hook is one program that was run after a restore, before anything was served.
type Hook struct {
	Name   string       `json:"name"`
	Exit   sandbox.Exit `json:"exit"`
	Error  string       `json:"error,omitempty"`  // why it could not be started
	Output string       `json:"output,omitempty"` // the end of what it wrote, at most [MaxHookOutput] bytes
	Cut    bool         `json:"cut,omitempty"`    // it wrote more
}

// Failed reports whether the hook did not do what it was there for.
func (h *Hook) Failed() bool { return h.Error != "" || h.Exit.Status() != 0 || h.Exit.TimedOut }

// HookDir holds, inside, the programs that PID 1 runs as root after a restore:
// regular files that may be executed and whose names have only letters, digits,
// '_' and '-', in the order of their names. They find the sandbox's ID in the
// variable BELLJAR_SANDBOX_ID and its generation in BELLJAR_GENERATION, and have
// [HookTime] in all. What they leave running lives on.
const HookDir = "/etc/belljar/restore.d"

// Bounds on hooks.
const (
	HookTime      = 10 * time.Second
	MaxHooks      = 32
	MaxHookOutput = 1 << 10
)

// Start begins a process.
type Start struct {
	ID      string            `json:"id"` // chosen by the host, 1 to 64 of [a-z0-9]; an ID in use is a conflict unless the request is equal
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	User    string            `json:"user,omitempty"`
	PTY     *PTYSize          `json:"pty,omitempty"`
	Stdin   bool              `json:"stdin"` // false: /dev/null
	Tag     string            `json:"tag,omitempty"`
	Timeout time.Duration     `json:"timeout,omitempty"` // then the whole tree is killed
	// KeepTree leaves descendants alive when the process itself has exited;
	// otherwise they are killed with it.
	KeepTree bool `json:"keep_tree,omitempty"`
	// Lease has the whole tree killed when no reader of the output has been
	// attached for so long: 0, the process needs none. See the package comment.
	Lease time.Duration `json:"lease,omitempty"`
}

// PTYSize is the window of a terminal.
type PTYSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Process is one process that was begun by Start.
type Process struct {
	ID        string        `json:"id"`
	PID       int           `json:"pid"`
	Tag       string        `json:"tag,omitempty"`
	Argv      []string      `json:"argv"`
	Cwd       string        `json:"cwd"`
	User      string        `json:"user"`
	PTY       bool          `json:"pty"`
	StartedAt time.Time     `json:"started_at"`
	Exit      *sandbox.Exit `json:"exit,omitempty"` // nil while it runs
	Stdout    Counts        `json:"stdout"`
	Stderr    Counts        `json:"stderr"`
	Stdin     int64         `json:"stdin"` // bytes taken so far
	Lease     time.Duration `json:"lease,omitempty"`
}

// Counts are byte counts of one output stream.
type Counts struct {
	Written int64 `json:"written"` // by the program
	Dropped int64 `json:"dropped"` // overwritten before a reader came
	Acked   int64 `json:"acked"`
}

// Ack tells that all output before these offsets has been taken for good.
type Ack struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// StdinReply tells how many bytes of standard input the process's pipe has
// taken in all: where to go on after an interruption.
type StdinReply struct {
	Offset int64 `json:"offset"`
}

// Signal is sent to the process's group, or with Tree to all its descendants.
type Signal struct {
	Signal int  `json:"signal"`
	Tree   bool `json:"tree,omitempty"`
}

// TooManyLinks is the sentence of the [sandbox.Invalid] error about links that
// lead in a circle.
const TooManyLinks = "too many levels of links, or a link that may not be followed"

// EntryType is the type of a directory entry.
type EntryType string

// The types of entry.
const (
	TypeFile    EntryType = "file"
	TypeDir     EntryType = "directory"
	TypeSymlink EntryType = "symlink"
	TypeOther   EntryType = "other"
)

// Entry describes one file. Names are raw bytes: those that are not UTF-8 are
// carried in RawPath.
type Entry struct {
	Name    string            `json:"name"`
	Path    string            `json:"path"`
	RawPath []byte            `json:"raw_path,omitempty"` // when Path is not valid UTF-8
	Type    EntryType         `json:"type"`
	Size    int64             `json:"size"`
	Mode    uint32            `json:"mode"` // permission bits with setuid, setgid, sticky as in stat(2)
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Owner   string            `json:"owner"`
	Group   string            `json:"group"`
	ModTime time.Time         `json:"mod_time"`
	Target  string            `json:"target,omitempty"` // of a link, unresolved
	Meta    map[string]string `json:"meta,omitempty"`   // user extended attributes

	// Of a link, where the request has links followed and it leads somewhere:
	// where to, and of what type and mode that is.
	Resolved   string    `json:"resolved,omitempty"`
	TargetType EntryType `json:"target_type,omitempty"`
	TargetMode uint32    `json:"target_mode,omitempty"`
}

// WatchEvent is one change beneath a watched directory. Dropped counts events
// that were lost before it because nobody read them; it comes with the Op
// "overflow" and the path of the watched directory.
type WatchEvent struct {
	Op      string `json:"op"` // create, write, remove, rename, chmod, overflow
	Path    string `json:"path"`
	RawPath []byte `json:"raw_path,omitempty"`
	Dropped int64  `json:"dropped,omitempty"`
}

// Metrics is what the guest counts inside: unverified.
type Metrics struct {
	CPUs      int   `json:"cpus"`
	MemTotal  int64 `json:"mem_total"`
	MemUsed   int64 `json:"mem_used"`
	MemCache  int64 `json:"mem_cache"` // of files, given back when it is needed
	DiskTotal int64 `json:"disk_total"`
	DiskUsed  int64 `json:"disk_used"`
	Processes int64 `json:"processes"`
	// LimitHits counts refusals by limits held inside, by name.
	LimitHits map[sandbox.LimitName]int64 `json:"limit_hits,omitempty"`
}

// ErrorBody wraps an error in a reply.
type ErrorBody struct {
	Error *sandbox.Error `json:"error"`
}

// LogMark is the payload of a [FrameJSON] in the public API's streams of logs,
// which hold the output of several processes: it goes before that of each, and
// the last one says that nothing is missing. Guests send none.
type LogMark struct {
	Process string `json:"process,omitempty"` // whose output follows
	End     bool   `json:"end,omitempty"`
}

// LeftOut tells what is missing from a tar stream that a guest has packed, and
// why. A list of them, in JSON, is the comment of a global header at the end of
// such a stream: every tar passes over it. It is the guest's own word.
type LeftOut struct {
	Reason string   `json:"reason"`
	Count  int64    `json:"count"`
	Names  []string `json:"names"` // the first few
}

// TarComment is the record of a global tar header that holds [LeftOut]s, and
// MaxLeftOut bounds its names, per reason, and their bytes.
const (
	TarComment     = "comment"
	MaxLeftOut     = 20
	MaxLeftOutName = 512
)

// FrameType says what a frame holds.
type FrameType uint8

// The types of frame.
const (
	FrameData      FrameType = 1 // payload at Offset of Stream
	FrameGap       FrameType = 2 // payload: uint64, bytes of Stream lost from Offset on
	FrameExit      FrameType = 3 // payload: JSON sandbox.Exit; the last frame
	FrameKeepalive FrameType = 4 // no payload
	FrameJSON      FrameType = 5 // payload: JSON, for watches, and marks in logs
)

// Stream numbers an output stream.
type Stream uint8

// The streams. A PTY has only Stdout.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// HeaderLen and MaxPayload bound a frame: 16 bytes and 256 KiB.
const (
	HeaderLen  = 16
	MaxPayload = 256 << 10
)

// Frame is the head of a frame: type, stream, two zero bytes, length of the
// payload (uint32) and offset (uint64), big endian.
type Frame struct {
	Type   FrameType
	Stream Stream
	Len    uint32
	Offset uint64
}

// Put writes the head into b, which has at least HeaderLen bytes.
func (f Frame) Put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(f.Type), byte(f.Stream), 0, 0
	binary.BigEndian.PutUint32(b[4:], f.Len)
	binary.BigEndian.PutUint64(b[8:], f.Offset)
}

// ReadFrame reads and checks the head of the next frame. Bytes come from a
// guest: anything out of the ordinary is an error. io.EOF before the first
// byte is returned as such.
func ReadFrame(r io.Reader) (Frame, error) {
	var b [HeaderLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{
		Type:   FrameType(b[0]),
		Stream: Stream(b[1]),
		Len:    binary.BigEndian.Uint32(b[4:]),
		Offset: binary.BigEndian.Uint64(b[8:]),
	}
	switch {
	case b[2] != 0 || b[3] != 0:
		return f, fmt.Errorf("wire: reserved bytes are set")
	case f.Type < FrameData || f.Type > FrameJSON:
		return f, fmt.Errorf("wire: unknown frame type %d", f.Type)
	case f.Len > MaxPayload:
		return f, fmt.Errorf("wire: frame of %d bytes exceeds %d", f.Len, MaxPayload)
	case (f.Type == FrameData || f.Type == FrameGap) && f.Stream != Stdout && f.Stream != Stderr:
		return f, fmt.Errorf("wire: unknown stream %d", f.Stream)
	case f.Type == FrameGap && f.Len != 8:
		return f, fmt.Errorf("wire: gap frame of %d bytes", f.Len)
	case f.Offset > 1<<62:
		return f, fmt.Errorf("wire: offset %d out of range", f.Offset)
	}
	return f, nil
}
