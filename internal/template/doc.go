// Package template keeps what sandboxes start from: root file systems with
// names, in a directory of the caller's own.
//
// # Kinds
//
//   - "host" is made from the machine that Belljar runs on: its programs and
//     libraries are bound read-only, a small root of ours holds the rest (see
//     host.go). It is not stored; what is made for it is cached.
//   - An imported template comes from a directory or an archive, see
//     [Store.Import].
//   - A built one comes from Debian packages, see [Store.Build].
//
// # On disk
//
//	DIR/.lock                    held shared to use, exclusive to remove or commit
//	DIR/NAME/template.json       [Details]
//	DIR/NAME/root/               the root file system
//	DIR/NAME/holds/ID            one file per sandbox that uses it
//	DIR/.host/DIGEST/root/       what the host template adds to the host's files
//	DIR/.host/current            which DIGEST, and what it was made from
//	DIR/.tmp-*                   being made, or being removed
//
// DIR and everything directly in it is 0700: the trees hold set-user-ID files
// with true owners, which no other user of the host may reach. A template
// appears and disappears by one rename; what a killed process left under a
// temporary name is removed by the next that makes or removes something.
//
// # In use
//
// A sandbox reads its root for as long as it lives, and may outlive the
// process that started it. So a hold is a file that names the lock of the
// keeper that parents the sandbox; it counts for as long as somebody has that
// lock, and lapses by itself when the keeper dies.
//
// A [Store] is safe for concurrent use, by many processes too.
package template
