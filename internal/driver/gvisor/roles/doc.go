// Package roles is what belljar-engine does when it is started as one of
// gVisor's own processes: the sentry ("boot") or the gofer. No other package
// links the sentry.
//
// The roles are gVisor's commands, run by gVisor's own command line code with a
// table of three entries; what is added here happens before them.
package roles
