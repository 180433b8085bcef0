// Package compat drives a real installation with published clients of other
// people's APIs. Clients come from their registries at the version that the
// test names; where they cannot be had, the test is skipped.
package compat
