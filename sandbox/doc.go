// Package sandbox is the domain of Belljar: what a sandbox is, what may be
// asked of one, the states it passes through and the ways in which a request
// can fail. It imports the standard library only and knows nothing of drivers,
// sockets or storage.
//
// # The shape of the product
//
// A caller (command line, SDK, MCP) speaks one public API. The manager turns a
// [Spec] into a [Sandbox] record, writes the intent down, and asks a keeper
// process to build it behind a [Boundary]. The keeper parents the sandbox and
// holds its two channels: "down", on which the host opens requests that the
// guest serves, and "up", on which the guest opens connections that the host
// decides. Everything that arrives from above the boundary is hostile input.
//
//	CLI / SDK -> manager -> keeper -> [ boundary ] -> guest
//
// # Promises that types carry
//
// An [Isolation] tells what was requested and what is in force. A
// [LimitStatus] tells for each limit whether this host enforces it. An [Error]
// has a stable [Kind], names the field and the value that were wrong and says
// how to put it right. [State] changes only along the table in state.go.
package sandbox
