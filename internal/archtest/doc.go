// Package archtest holds tests of the source tree itself: which package may
// import which and why, calls that have a better replacement here, comments
// that must exist, and what the small programs do before main. It exports
// nothing and needs neither root nor a network.
//
// Every rule is a row of a table with its reason, so that the reason is what a
// failing test prints. Exceptions stand in the same rows, each with a reason of
// its own, and a row whose exception is no longer needed fails too.
package archtest
