// Package startbench measures how long it takes on this machine from asking for
// a sandbox to the end of `echo hi` in it: started cold, taken from a warm pool,
// resumed, started from a snapshot, forked; and beside it the same with bwrap,
// runc and runsc, where these are installed.
//
// Each round measures every side once, in alternating order, so that a change of
// the machine's load hits all alike. It works in an installation of its own,
// with a daemon of its own, that is gone when [Run] returns; what a run that was
// killed has left goes with the next one.
package startbench
