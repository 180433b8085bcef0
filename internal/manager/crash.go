package manager

import "github.com/belljar-sh/belljar/internal/manager/pool"

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

// The crash points of pauses and resumes.
const (
	CrashPauseBegun    = "pause.begun"    // intent is written
	CrashPauseSaved    = "pause.saved"    // the keeper has nothing any more, the image has not got its name
	CrashPauseRenamed  = "pause.renamed"  // the image is in place, the journal does not know
	CrashPausePaused   = "pause.paused"   // the journal knows, the caller does not
	CrashResumeBegun   = "resume.begun"   // intent is written
	CrashResumeSent    = "resume.sent"    // the keeper is at work
	CrashResumeCreated = "resume.created" // the sandbox runs, the journal does not know
	CrashResumeDone    = "resume.done"    // the journal knows, the image is still there
	CrashPausedKilled  = "paused.killed"  // the end of a paused sandbox is written, its image is still there
)

// The crash points of claims. Those of the making of what is claimed are
// pool's.
const (
	CrashClaimAssigned = "claim.assigned" // the journal names the keeper of one that waits
	CrashClaimSent     = "claim.sent"     // the keeper is at work
	CrashClaimed       = "claim.claimed"  // the sandbox runs under its name, the journal does not know
)

// PoolCrashPoints lists the crash points of pools and claims.
func PoolCrashPoints() []string {
	return []string{pool.CrashParking, pool.CrashParked, CrashClaimAssigned, CrashClaimSent, CrashClaimed}
}

// The crash points of snapshots and forks.
const (
	CrashSnapshotBegun     = "snapshot.begun"     // the sandbox is to be saved
	CrashSnapshotWritten   = "snapshot.written"   // the image is written, the journal does not know that the sandbox goes on
	CrashSnapshotSaved     = "snapshot.saved"     // the sandbox goes on, the image has no manifest
	CrashSnapshotSealed    = "snapshot.sealed"    // the image is complete and has not got its name
	CrashSnapshotPublished = "snapshot.published" // it is in place, the caller does not know
	CrashSnapshotRemoving  = "snapshot.removing"  // it is not listed any more, and still there
	CrashForkSaved         = "fork.saved"         // the image is written, no copy is made
	CrashPreparedReady     = "prepared.ready"     // a template is ready, its image is not begun
	CrashPreparedSealed    = "prepared.sealed"    // the image is complete and has not got its name
)

// SnapshotCrashPoints lists the crash points of snapshots and forks.
func SnapshotCrashPoints() []string {
	return []string{
		CrashSnapshotBegun, CrashSnapshotWritten, CrashSnapshotSaved, CrashSnapshotSealed, CrashSnapshotPublished,
		CrashSnapshotRemoving, CrashForkSaved,
	}
}

// PauseCrashPoints lists the crash points of pauses and resumes.
func PauseCrashPoints() []string {
	return []string{
		CrashPauseBegun, CrashPauseSaved, CrashPauseRenamed, CrashPausePaused,
		CrashResumeBegun, CrashResumeSent, CrashResumeCreated, CrashResumeDone, CrashPausedKilled,
	}
}

// CrashPoints lists every crash point but those of pauses and resumes.
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
