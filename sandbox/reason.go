package sandbox

// The values of [Sandbox].EndReason: why a sandbox ended.
const (
	EndKilled  = "killed"  // somebody asked for it
	EndTimeout = "timeout" // its time was over
	EndOOM     = "oom"     // the memory limit ended it
	EndExited  = "exited"  // the guest ended by itself
	EndFault   = "fault"   // the host ended it: the guest broke the protocol
	EndFailed  = "failed"  // it could not be created
	EndLost    = "lost"    // its keeper died
	EndStopped = "stopped" // the daemon was stopped with all its sandboxes
)
