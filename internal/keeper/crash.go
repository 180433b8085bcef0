package keeper

import (
	"os"

	"golang.org/x/sys/unix"
)

// CrashPoint names a place where a keeper can be made to die, for tests of
// what it leaves behind.
type CrashPoint string

// The crash points, in the order in which a sandbox passes them.
const (
	BeforeHandle CrashPoint = "before-handle"
	AfterHandle  CrashPoint = "after-handle"
	AfterCreate  CrashPoint = "after-create"
	AfterStart   CrashPoint = "after-start"
	AfterHello   CrashPoint = "after-hello"
	BeforeReap   CrashPoint = "before-reap"
	AfterReap    CrashPoint = "after-reap"

	// Of one that is parked, and of a claim.
	AfterPark   CrashPoint = "after-park"
	AfterRename CrashPoint = "after-rename"

	// Of a checkpoint.
	AfterQuiesce    CrashPoint = "after-quiesce"
	AfterCheckpoint CrashPoint = "after-checkpoint"
)

// CrashPoints lists them all.
func CrashPoints() []CrashPoint {
	return []CrashPoint{BeforeHandle, AfterHandle, AfterCreate, AfterStart, AfterHello, BeforeReap, AfterReap}
}

// ParkCrashPoints lists those that a sandbox passes as it is parked and claimed,
// besides the others.
func ParkCrashPoints() []CrashPoint { return []CrashPoint{AfterPark, AfterRename} }

// CheckpointCrashPoints lists those that a sandbox passes as it is saved.
func CheckpointCrashPoints() []CrashPoint { return []CrashPoint{AfterQuiesce, AfterCheckpoint} }

// crash kills this process, as kill -9 would, when p is the chosen point.
func (k *keeper) crash(p CrashPoint) {
	if p == k.opts.Crash {
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // the signal is on its way
	}
}
