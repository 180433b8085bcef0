package manager

// The crash points: where a test can have the process die. Each stands for
// "between this step and the next".
const (
	CrashCreateJournalled = "create.journalled" // intent is written
	CrashCreateAcquired   = "create.acquired"   // a keeper runs, the journal does not name it
	CrashCreateAssigned   = "create.assigned"   // the journal names the keeper
	CrashCreateSent       = "create.sent"       // the keeper is at work
	CrashCreateCreated    = "create.created"    // the sandbox runs, the journal does not know
	CrashCreateRunning    = "create.running"    // the journal knows, the caller does not
	CrashKillJournalled   = "kill.journalled"   // intent is written
	CrashKillSent         = "kill.sent"         // the keeper is at work
	CrashKillDeleted      = "kill.deleted"      // nothing is left, the journal does not know
	CrashCommandEnded     = "command.ended"     // an exit is written, the sandbox that goes with it lives
	CrashAdoptListed      = "adopt.listed"      // keepers have been asked
	CrashAdoptAdopted     = "adopt.adopted"     // sandboxes are adopted, the others not yet killed
	CrashAdoptReaped      = "adopt.reaped"      // leftovers are gone, the journal does not know
)

// CrashPoints lists every crash point.
func CrashPoints() []string {
	return []string{
		CrashCreateJournalled, CrashCreateAcquired, CrashCreateAssigned, CrashCreateSent, CrashCreateCreated, CrashCreateRunning,
		CrashKillJournalled, CrashKillSent, CrashKillDeleted, CrashCommandEnded,
		CrashAdoptListed, CrashAdoptAdopted, CrashAdoptReaped,
	}
}

func (m *Manager) crash(point string) {
	if m.o.Crash != nil {
		m.o.Crash(point)
	}
}
