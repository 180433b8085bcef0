// Package guest is what runs inside a sandbox: PID 1, which reaps, and a
// server for processes and files on the down channel. It speaks
// internal/guest/wire and is the only part of Belljar that guest code can
// touch; nothing that it says is an input to policy on the host.
//
// # Parts
//
//	server.go, hello.go   requests, generations, hello and quiesce
//	start.go, process.go  processes: fork.go forks them, reaper.go reaps them
//	output.go, attach.go  numbered output, held back or dropped as wire says
//	tree.go               one cgroup per process tree where there are cgroups
//	paths.go, files*.go   files, as the user asked for (identity.go, as.go)
//	init.go               the duties of PID 1, only done by PID 1
//
// # Price
//
// Behind gVisor a system call costs a microsecond or more and a new process
// several milliseconds. So a process is forked and executed once, with no
// helper in between, and what has to happen in the child (cgroup, limits, user)
// happens between fork and exec, in fork.go. Data moves through few, large
// reads and writes. Buffers are taken when data flows and given back after.
package guest
