// Package driver is the contract between Belljar and a boundary: what every
// driver does, in which order it may be asked, and who owns what.
//
// # Who calls
//
// The keeper, and nobody else, calls a driver. Calls for different sandboxes
// may overlap; calls for one [Instance] do not, except Wait, Stats and Kill,
// which may be called at any time after Create has returned and any number of
// times.
//
// # Life of an instance
//
//	Probe            what this host offers; no side effect
//	Handle           names everything that Create would acquire; pure
//	Create           acquires and boots; no guest code runs yet
//	  Start          guest code (belljar-guest, PID 1) runs
//	    Wait         returns once, with how the sandbox ended
//	    Kill         ends it; idempotent; returns when no process of it is left
//	Reap(Handle)     gives back whatever Create acquired or would have; idempotent
//
// The keeper writes the [Handle] down before it calls Create, so that a
// keeper that is killed between any two instructions leaves a handle by which
// another process finds and removes all that was left. Reap therefore must
// work in a process that never created the instance, after a partial Create,
// and twice. When Create fails it has already given back what it took.
//
// # Resources
//
// Everything on disk lives under [CreateRequest].Dir (0700, made and finally
// removed by the keeper). Whatever lives elsewhere (cgroups, mounts) is named
// in the Handle. Mounts are made in the keeper's own mount namespace only. A
// process of a sandbox dies with its keeper; where the kernel cannot promise
// that, Reap does it.
//
// # Channels
//
// A driver hands out two byte streams, made before guest code runs: Down, on
// which the host asks and the guest (descriptor 3) answers, and Up, on which
// the guest (descriptor 4) asks and the host answers. The keeper owns them from
// then on and closes them. What arrives on either is hostile.
//
// # Honesty
//
// A driver reports per limit whether it is enforced and by what
// ([Instance].Limits). A limit with Explicit set that it cannot enforce fails
// Create with [sandbox.Unsupported]. It never falls back to a weaker boundary;
// choosing another driver is the manager's act.
package driver
