// Package e2b serves the data plane of the E2B wire: what a published E2B
// client asks of one sandbox, on the host and as a translation onto our own
// protocol. A guest neither reads nor writes a byte of it.
//
// A [Handler] routes a request by its headers E2b-Sandbox-Id and
// E2b-Sandbox-Port to the sandbox, checks who asks where there is an access
// token, and hands it to internal/e2b/process, internal/e2b/files or one of
// the small routes here.
package e2b
