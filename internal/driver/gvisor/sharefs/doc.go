// Package sharefs serves a caller's directories to a gVisor sandbox. It is a
// file server of our own in gVisor's gofer process, below the sentry: what it
// refuses, no guest gets, root inside or not, nor a sentry that a guest has taken
// over. The sentry must be told not to open the mount's files itself (directfs
// off for it), which [Annotate] does.
//
// # What it enforces
//
// Owners. A file whose owner on the host is the caller seems to belong to the
// ids of the share; others seem to belong to nobody (65534). Whatever is made
// belongs to the caller. chown of a file that seems to be the share's own
// succeeds and changes nothing, whichever id it names, so that tar, cp -a, npm
// and install work as root inside; of any other file it fails with EPERM.
//
// Modes. No file gets a set-user-ID, set-group-ID or, unless it is a directory,
// sticky bit: they are left out when a file is made or changed and not shown
// where the host has them. A directory made below one with the set-group-ID bit
// does not keep the bit that it inherits. A file of the host that has a set-ID
// bit is not writable, for this process may hold the capability that keeps the
// bit over a write. Nobody else on the host gains the right to write: a mode that
// gives it to others is taken without it, and one that gives it to the group too,
// where the file is older than the server or the file system does not tell. The
// mode that a guest sees is the one on disk.
//
// Kinds. Devices, FIFOs and sockets of the host are seen by stat and cannot be
// opened. None can be made: mknod answers EPERM, upon which the sentry keeps a
// FIFO or socket in its own memory, where it works between processes inside and
// leaves nothing on the host. A FIFO on the host would let a guest block, or feed,
// a program there that opens it.
//
// Attributes. user.* up to a few KiB, except for names by which container tools
// record owners and modes; nothing else, so no file capability.
//
// Paths. Names are looked up one at a time, by descriptor, with openat2: beneath
// the directory, through no link, into no other mount. Links are stored as given
// and never followed here. A mount of the host inside the directory shows as an
// entry without permissions. Hard links exist within a share only.
//
// Names. With Protect, the names of [workspace.Rules] are read-only, as that
// package describes; the errors are EROFS. Where a directory of the caller's was,
// no symbolic link may stand, which could lead to one that the sandbox filled.
//
// Read-only shares refuse every change, whatever the sentry's mount says.
//
// # Descriptors for the sentry
//
// With Donate, the sentry gets host descriptors of regular files, without which
// reads and writes cost a round trip each and shared mappings do not work.
// Through one it could call fchmod, so the sentry must run under
// [hostfilter.Install]. Files of protected names are never opened for writing;
// nothing is donated from a read-only share whose mount is not read-only on the
// host too.
//
// # Concurrency
//
// lisafs calls in from many goroutines. What it guarantees is used as documented
// there: creations and removals in one directory exclude each other, and a rename
// excludes everything else on the server.
package sharefs
