package client

import (
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/gen/api"
	"github.com/belljar-sh/belljar/internal/guest/wire"
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

// Start asks for a process. An empty ID is drawn by the client.
type Start = api.Start

// Forked is the answer to a fork.
type Forked = api.Forked

// Created is the answer to [Client.Create]. When StartError is set the sandbox
// runs nevertheless.
type Created = api.Created

// Stats is what a sandbox uses, as the host counts it. Guest, present when the
// guest answered, is its own word.
type Stats = api.Stats

// Info tells who serves the API. Reports are only in the answer to
// [Client.Probe].
type Info = api.Info
