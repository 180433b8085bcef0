// Package pool keeps sandboxes ready before anybody asks for them: kernels that
// have booted, and guests that wait to be told who they are. It decides how many
// of which, has them made in the background and hands each out once.
//
// # What serves whom
//
// A [Key] is all that cannot be changed once a kernel has booted: boundary,
// build, template, the root that it resolved to, and the limits with which of
// them were asked for. A [Want] is served by a sandbox of the very same key, or
// not at all. Mounts are part of no key: a sandbox that waits has none. Which
// limits were asked for is, so that what a record says of its limits, and which
// of them are refused as not enforceable, is word for word what a create of its
// own would have said.
//
// # How many
//
// A pool has a size that is always kept, and a ceiling. Each request that finds
// nothing raises the target by one for a while. Making them gives way: it waits a
// moment after a claim, never takes the last place that creates have, nor any
// while a create waits, and it stops when the host runs out of memory. Under a
// load that never ends one at a time is made beside the creates.
//
// # What ends
//
// Take removes a sandbox from the pool for good: whatever comes of the claim, it
// never returns. One that ends while it waits, or whose key is not what a create
// would ask for any more, is given back and replaced. What waits is known to no
// journal: the next manager has its keepers remove what it does not know.
package pool
