// Package testenv gives tests the real programs, built once, directories of
// their own for state and sockets, and the probes by which a test that cannot
// run on a host is skipped. Only tests import it.
package testenv
