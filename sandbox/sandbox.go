package sandbox

import (
	"strings"
	"time"
)

// Sandbox is the record of one sandbox: what was asked, what is in force and
// where it stands. It is a value; the manager owns the authoritative copy.
type Sandbox struct {
	ID         ID                `json:"id"`
	Name       string            `json:"name,omitempty"`
	Template   string            `json:"template"`
	State      State             `json:"state"`
	Isolation  Isolation         `json:"isolation"`
	Limits     []LimitStatus     `json:"limits"`
	User       string            `json:"user"`
	Workdir    string            `json:"workdir,omitempty"`
	Hostname   string            `json:"hostname"`
	Mounts     []Mount           `json:"mounts,omitempty"`
	Snapshot   ID                `json:"snapshot,omitempty"` // that it started from
	ForkOf     ID                `json:"fork_of,omitempty"`  // the sandbox that it is a copy of
	Origin     Origin            `json:"origin,omitempty"`   // of its present generation
	Generation uint64            `json:"generation"`         // counts boots and restores; streams of older ones are refused
	CreatedAt  time.Time         `json:"created_at"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	EndsAt     time.Time         `json:"ends_at,omitzero"` // zero: no timeout, or paused
	OnTimeout  OnTimeout         `json:"on_timeout,omitempty"`
	PausedAt   time.Time         `json:"paused_at,omitzero"`    // of a paused sandbox
	PausedKind SnapshotKind      `json:"paused_kind,omitempty"` // what is kept of one that is paused: with files alone it will boot anew
	ImageBytes int64             `json:"image_bytes,omitempty"` // what a paused sandbox takes on disk
	EndedAt    time.Time         `json:"ended_at,omitzero"`
	EndReason  string            `json:"end_reason,omitempty"`  // one of the End constants
	EndMessage string            `json:"end_message,omitempty"` // a sentence about it; it may quote a guest
	Command    *Command          `json:"command,omitempty"`     // the one that it was made with
	AutoRemove bool              `json:"auto_remove,omitempty"` // killed when that command has ended
	CPUsSeen   int               `json:"cpus_seen,omitempty"`   // cores that a program inside counts
	Labels     map[string]string `json:"labels,omitempty"`
	Timeline   []Step            `json:"timeline,omitempty"` // where the time of the create went
	Restore    *Restore          `json:"restore,omitempty"`  // nil: booted, not restored from a memory image
}

// Restore tells what a sandbox that came from a memory image has anew. Many may
// have come from the same image; a sandbox that could not be told from its
// siblings is not let run.
type Restore struct {
	Generation uint64    `json:"generation"` // that began with it
	Entropy    Source    `json:"entropy"`    // where random bytes inside come from
	Clock      Source    `json:"clock"`      // and the time
	At         time.Time `json:"at"`         // by the host's clock
	// ClockOffset is how far the clock inside was from the host's, in
	// nanoseconds, as exactly as the way there and back lets one tell.
	ClockOffset time.Duration `json:"clock_offset"`
}

// Source tells where randomness or time inside comes from after a restore.
type Source string

// HostLive comes from the running host; GuestState was part of the memory
// image and must be renewed.
const (
	HostLive   Source = "host-live"
	GuestState Source = "guest-state"
)

// Command is the first command of a sandbox: the one that it was made with.
type Command struct {
	Process string `json:"process"` // its ID
	// Argv is its program and arguments, for people: cut after [MaxShownArgs]
	// bytes.
	Argv []string `json:"argv"`
	// Exit tells how it ended: nil while it runs, or as long as nobody has seen
	// its end. A sandbox that ended first has ended it by signal 9.
	Exit *Exit `json:"exit,omitempty"`
}

// MaxShownArgs bounds the arguments, in bytes, that a [Command] keeps.
const MaxShownArgs = 1024

// NewCommand returns the command of a process that was started with argv, whose
// values it may share.
func NewCommand(process string, argv []string) *Command {
	left := MaxShownArgs
	for i, a := range argv {
		if len(a) > left {
			cut := append([]string(nil), argv[:i]...)
			return &Command{Process: process, Argv: append(cut, strings.ToValidUTF8(a[:left], "")+"...")}
		}
		left -= len(a) + 1
	}
	return &Command{Process: process, Argv: argv}
}

// Step is one measured part of an operation.
type Step struct {
	Name  string        `json:"name"`
	Start time.Duration `json:"start"` // since the operation began, in nanoseconds
	Took  time.Duration `json:"took"`  // in nanoseconds
}

// Exit tells how a sandbox or a process ended.
type Exit struct {
	Code     int       `json:"code"`             // exit status; -1 when a signal ended it
	Signal   int       `json:"signal,omitempty"` // 0: exited by itself
	OOM      bool      `json:"oom,omitempty"`    // the memory limit ended it
	TimedOut bool      `json:"timed_out,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// Status returns the exit code that a shell would report: the code itself, or
// 128 plus the signal.
func (e Exit) Status() int {
	if e.Signal != 0 {
		return 128 + e.Signal
	}
	return e.Code
}

// Stats is what a sandbox uses now, as the host counts it.
type Stats struct {
	CPUTime      time.Duration `json:"cpu_time"`      // consumed since start, in nanoseconds
	MemoryBytes  int64         `json:"memory_bytes"`  // in use, guest kernel included
	MemoryLimit  int64         `json:"memory_limit"`  // 0: none
	DiskBytes    int64         `json:"disk_bytes"`    // that files it has written take, where they are on a disk
	OOMKills     int64         `json:"oom_kills"`     // of the sandbox's cgroup
	Tasks        int64         `json:"tasks"`         // host threads, guest kernel included
	ReadBytes    int64         `json:"read_bytes"`    // carried by the channels to the host
	WrittenBytes int64         `json:"written_bytes"` // carried by the channels to the guest
	// EgressRefused counts the connections that the sandbox asked for and did
	// not get.
	EgressRefused int64 `json:"egress_refused"`
}

// Template is a named root file system that sandboxes start from.
type Template struct {
	Name       string    `json:"name"`
	Kind       string    `json:"kind"` // host, imported or built
	CreatedAt  time.Time `json:"created_at,omitzero"`
	SizeBytes  int64     `json:"size_bytes,omitempty"`
	Setuid     bool      `json:"setuid"` // sudo can work
	HostBacked bool      `json:"host_backed"`
	// Start and Ready are shell commands: every sandbox of the template begins as
	// one in which Start runs and Ready has succeeded. Empty: there are none.
	Start  string `json:"start_command,omitempty"`
	Ready  string `json:"ready_command,omitempty"`
	Digest string `json:"digest,omitempty"`
}
