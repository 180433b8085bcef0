// Package e2e proves what Belljar promises its users, each promise by a named
// test, with the real programs built once. A test that cannot run on a host
// says which probe said no.
package e2e
