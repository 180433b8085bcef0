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

// endPrefix begins the reason of a process whose sandbox has ended under it.
const endPrefix = "the sandbox ended: "

// EndedWith is the exit of a process whose sandbox has ended under it, for a
// reason of the End constants.
func EndedWith(reason string, at time.Time) Exit {
	return Exit{
		Code: -1, Signal: 9, At: at,
		OOM: reason == EndOOM, TimedOut: reason == EndTimeout,
		Reason: endPrefix + reason,
	}
}

// EndOf returns why the sandbox of a process ended, "" when the process ended
// by itself: the inverse of [EndedWith].
func (e Exit) EndOf() string {
	reason, ok := strings.CutPrefix(e.Reason, endPrefix)
	if !ok {
		return ""
	}
	return reason
}
