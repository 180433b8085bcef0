// Package archive packs files into tar streams and unpacks tar streams that
// nobody vouches for: templates that a person imports, and what a hostile guest
// sends when files are copied out of its sandbox.
//
// # Unpacking
//
// A name in an archive is never joined to a path. Every entry is placed
// through a descriptor of the destination: its parent is opened beneath that
// descriptor by openat2 with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and
// RESOLVE_NO_MAGICLINKS, and the entry itself is created, never opened when it
// already exists. So neither the archive nor another process that swaps
// directories for links while the unpacking goes on can lead a write out of the
// destination. An entry that tries is an error that names it; nothing is
// quietly renamed.
//
// What an entry says of itself is filtered: permission bits only, unless the
// caller wants more; owners only where the caller says so; no extended
// attribute, so no file capability; times outside 1970 to 2106 become now.
// [Limits] bound entries, bytes, depth and the ratio by which a compressed
// stream may grow.
//
// # Half-made results
//
// [Place] unpacks into a new directory beside the destination, syncs it and
// renames it. After an error, or a kill between any two instructions, the
// destination is as it was. [Unpack] is the bare core: it unpacks into an
// empty directory that the caller made and will remove.
//
// # Packing
//
// [Pack] opens by descriptor, follows a link only where the caller named one
// itself, and reads regular files only: opening a FIFO that was swapped in
// cannot block it.
package archive
