// Package gvisor runs sandboxes behind gVisor: a kernel of their own, written
// in Go, that runs as an ordinary process of the host.
//
// # Shape
//
// Each sandbox is two processes of the host, both started by the keeper:
//
//	sentry   runs the sandbox's kernel and, beneath it, every guest process
//	gofer    opens the files of the root file system and serves the mounts
//
// Both are gVisor's own roles "boot" and "gofer", run by belljar-engine (package
// roles). This package links no part of gVisor. It prepares what the roles need
// (descriptors, cgroups, user namespaces, mount trees), starts them, and speaks
// to the sentry's control socket. gVisor's own container library is not used:
// it moves the whole calling process between cgroups, changes process-wide
// settings, takes the caller's standard streams and starts the two processes
// one after the other, none of which a keeper with many sandboxes can afford.
//
// # Ids
//
// Both processes live in a user namespace. Started by root it maps ids 0 to
// 65535 to a range of host ids that belongs to this sandbox alone and owns
// nothing on the host, so the host kernel lets the sentry read only what every
// user of the host may read. Started by an ordinary user, the keeper is already
// in a user namespace, and the sandbox's maps the same ids again.
//
// # Mounts
//
// No mount is ever attached in the keeper's mount namespace. Trees are opened
// detached (open_tree), restricted (mount_setattr) and handed to the gofer as
// descriptors; the kernel drops them with the last of these.
package gvisor
