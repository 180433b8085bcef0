// Package keeper parents sandboxes. It holds both channels of each, forwards
// requests to the guest and answers what the guest asks for; it has no policy,
// no secret and no store.
//
// # Who owns what
//
// A keeper owns one directory and says so by a lock that it holds for life:
//
//	DIR/lock                      flock; whoever holds it may touch DIR
//	DIR/owner.json                pid, start time, build, kind
//	DIR/keeper.log                its standard error; cut to head and tail when it grows
//	DIR/keeper.sock, fds.sock     keeper/wire
//	DIR/sandboxes/ID/handle.json  written and synced before the driver acquires anything
//	DIR/sandboxes/ID/driver/      the driver's own
//
// A directory whose lock is free belongs to nobody. [Reap] takes the lock,
// gives back what the handles name and removes the directory.
//
// # Life of a sandbox in a keeper
//
//	reserve id -> handle.json -> driver.Create -> Start -> hello -> running
//	running -> ended by itself, by DELETE, by a fault of its guest, or with the keeper
//	any of these -> Destroy -> Reap -> directory removed -> forgotten
//
// One goroutine waits for each instance and one serves each up channel; both
// are waited for before the sandbox is forgotten.
//
// # Hostile guests
//
// What comes from a guest has passed internal/channel. Of a guest's answers
// only a status, a few headers and the bytes of the body are forwarded. A
// fault ends the sandbox that caused it and is reported in its status.
package keeper
