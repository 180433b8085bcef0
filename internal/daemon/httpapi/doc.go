// Package httpapi serves the public API, /belljar/v1 as api/openapi.yaml
// describes it, over a manager. It decodes strictly, bounds what it reads and
// turns errors into statuses; everything else is the manager's.
//
// The same handler serves the daemon's socket and, through client.InProcess, a
// program that has no daemon.
package httpapi
