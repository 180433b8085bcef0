// Package gvisor runs sandboxes behind gVisor: a kernel of their own, written
// in Go, that runs as an ordinary process of the host.
//
// # Shape
//
// A sandbox is one process of the host, two where it has mounts, started by the
// keeper:
//
//	sentry   runs the sandbox's kernel and, beneath it, every guest process
//	gofer    serves the caller's directories (package sharefs)
//
// Both are gVisor's own roles "boot" and "gofer", run by belljar-engine (package
// roles). This package prepares what they need (descriptors, cgroups, user
// namespaces, mount trees), starts them, and speaks to the sentry's control
// socket; of gVisor it links the formats of its messages. gVisor's own container
// library is not used: it moves the whole calling process between cgroups,
// changes process-wide settings, takes the caller's standard streams and starts
// the two processes one after the other, none of which a keeper with many
// sandboxes can afford.
//
// # Files
//
// The root's lower layer is put together as one detached mount tree (mounter),
// read-only, and its descriptor handed to the sentry, which opens files below it
// by itself (gVisor's directfs). No path leads out of such a tree: it has no
// parent. rootServer answers the two requests that a gofer would be needed for.
// What the sandbox writes goes to an unnamed file on a disk of the host, bounded
// in size.
//
// No mount is ever made in the namespace of the keeper or of the host. The
// kernel drops trees and files with their last descriptor, so a crash leaves
// none of them.
//
// # Ids
//
// Both processes live in a user namespace. Started by root it maps ids 0 to
// 65535 to a range of host ids that belongs to this sandbox alone and owns
// nothing on the host, so the host kernel lets the sentry read only what every
// user of the host may read. Started by an ordinary user, the keeper is already
// in a user namespace, and the sandbox's maps the same ids again.
//
// Inside, ids are the sentry's own affair: there are always many, and set-user-ID
// programs work where the template is meant to have them, even when the host
// grants a single id.
//
// # Ends
//
// A role dies with the thread that started it, which lives as long as its keeper
// (spawner). What a killed keeper leaves is found by cgroup, by the number and
// start time of its processes, which are recorded before guest code runs, and,
// where the keeper died before that, by command line (Reap).
package gvisor
