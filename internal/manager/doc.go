// Package manager is the life cycle of sandboxes: create, kill, time out,
// adopt again after a restart. It decides and records; keepers act.
//
// # What it knows
//
// Contracts only: [Keepers] to run sandboxes, [Templates] to start them from,
// [Journal] to remember them. It imports no driver and no server.
//
// # Order of things
//
// Intent is in the journal before anything is acquired, and a record is
// [sandbox.Dead] only when nothing of the sandbox is left on the host:
//
//	Creating  journalled, then with the keeper's name, then the keeper is asked
//	Running   journalled when the guest has answered
//	Killing   journalled, then the keeper is asked to give everything back
//	Dead      journalled when it has, or when the dead keeper's directory was reaped
//
// A manager that is killed between any two of these finds at its next [Open]:
// live keepers, whose running sandboxes it adopts when the journal says Running
// and which it tells to kill all others; and records of sandboxes that nobody
// keeps, which it takes to Dead once the keepers' leftovers have been reaped.
// Named crash points (crash.go) stand at each of these steps.
//
// # Locks
//
// Manager.mu guards the index of sandboxes, entry.mu one sandbox. Nobody takes
// an entry's while holding Manager.mu, nor waits for a keeper while holding
// either. An entry's is held while its record is journalled, so that nobody
// sees what is not written.
package manager
