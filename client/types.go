package client

import (
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Process is a process that was started through the API.
type Process = wire.Process

// PTYSize is the window of a terminal, in characters.
type PTYSize = wire.PTYSize

// Counts are the byte counts of one output stream of a [Process].
type Counts = wire.Counts

// Entry describes a file inside a sandbox.
type Entry = wire.Entry

// WatchEvent is one change beneath a watched directory.
type WatchEvent = wire.WatchEvent

// Metrics is what a sandbox counts inside. It is the guest's own word.
type Metrics = wire.Metrics

// Report tells what one boundary needs and whether this host has it.
type Report = driver.Report

// StreamID numbers an output stream of a process.
type StreamID = wire.Stream

// The output streams. A process with a terminal has only Stdout.
const (
	Stdout = wire.Stdout
	Stderr = wire.Stderr
)

// Start asks for a process.
type Start struct {
	// ID names the process in its sandbox: 1 to 64 of a-z and 0-9. Empty: the
	// client draws one. A second Start with the same ID and equal content is
	// answered with the process of the first.
	ID      string            `json:"id,omitempty"`
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env,omitempty"` // beside the sandbox's own
	Cwd     string            `json:"cwd,omitempty"` // default: the sandbox's work directory
	User    string            `json:"user,omitempty"`
	PTY     *PTYSize          `json:"pty,omitempty"`       // a terminal of that size
	Stdin   bool              `json:"stdin,omitempty"`     // false: reads see the end at once
	Tag     string            `json:"tag,omitempty"`       // for the caller's own use
	Timeout time.Duration     `json:"timeout,omitempty"`   // in nanoseconds; then the whole tree is killed
	Keep    bool              `json:"keep_tree,omitempty"` // descendants outlive the process
	// Capture has the manager keep the output for [Client.Logs]: for processes
	// that nobody attaches to.
	Capture bool `json:"capture,omitempty"`
}

// Created is the answer to [Client.Create].
type Created struct {
	Sandbox sandbox.Sandbox `json:"sandbox"`
	Process *Process        `json:"process,omitempty"` // of the Start that went with it
	// StartError tells why that process could not be started; the sandbox
	// runs nevertheless.
	StartError *sandbox.Error `json:"start_error,omitempty"`
}

// Stats is what a sandbox uses. The embedded part is counted by the host;
// Guest, present when the guest answered, is its own word.
type Stats struct {
	sandbox.Stats
	Guest *Metrics `json:"guest,omitempty"`
}

// Info tells who serves the API.
type Info struct {
	Version    string    `json:"version"`
	Build      string    `json:"build"` // equal builds work together
	Mode       string    `json:"mode"`  // "daemon" or "in-process"
	PID        int       `json:"pid"`
	Instance   string    `json:"instance"` // new at every start of the daemon
	StartedAt  time.Time `json:"started_at"`
	Live       int       `json:"live"` // sandboxes that hold resources
	StateDir   string    `json:"state_dir,omitempty"`
	RuntimeDir string    `json:"runtime_dir,omitempty"`
	Reports    []Report  `json:"reports,omitempty"` // only in the answer to [Client.Probe]
}
