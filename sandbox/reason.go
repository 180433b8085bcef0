package sandbox

import (
	"strings"
	"time"
)

// The values of [Sandbox].EndReason: why a sandbox ended.
const (
	EndKilled   = "killed"   // somebody asked for it
	EndTimeout  = "timeout"  // its time was over
	EndOOM      = "oom"      // the memory limit ended it
	EndExited   = "exited"   // the guest ended by itself
	EndFault    = "fault"    // the host ended it: the guest broke the protocol
	EndFailed   = "failed"   // it could not be created
	EndLost     = "lost"     // its keeper died
	EndFinished = "finished" // its first command has ended, and it was to go with it
	EndStopped  = "stopped"  // the daemon was stopped with all its sandboxes
)

// ReasonOrphaned is the [Exit].Reason of a process that was killed because its
// client did not come back in time.
const ReasonOrphaned = "orphaned"

// ReasonPaused is the [Exit].Reason of a process that a pause has ended which
// kept files and no memory.
const ReasonPaused = "ended by a pause that kept files alone"

// endPrefix begins the reason of a process whose sandbox has ended under it.
const endPrefix = "the sandbox ended: "

// EndedWith is the exit of a process whose sandbox has ended under it, for a
// reason of the End constants. The message, which may be empty, says more of an
// [EndFault].
func EndedWith(reason, message string, at time.Time) Exit {
	x := Exit{
		Code: -1, Signal: 9, At: at,
		OOM: reason == EndOOM, TimedOut: reason == EndTimeout,
		Reason: endPrefix + reason,
	}
	if reason == EndFault && message != "" {
		x.Reason += ": " + message
	}
	return x
}

// EndOf returns why the sandbox of a process ended, and what [EndedWith] was
// told of it; "" when the process ended by itself.
func (e Exit) EndOf() (reason, message string) {
	rest, ok := strings.CutPrefix(e.Reason, endPrefix)
	if !ok {
		return "", ""
	}
	reason, message, _ = strings.Cut(rest, ": ")
	return reason, message
}
