package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// probeTimeout bounds the one program that Probe runs.
const probeTimeout = 2 * time.Second

// Probe asks the host what the driver needs.
func (d *Driver) Probe(ctx context.Context) driver.Report {
	r := driver.Report{Boundary: sandbox.GVisor, Available: driver.Yes, Capabilities: driver.Capabilities{
		MemoryCheckpoint: true, FileSnapshot: true, Setuid: true, MultiUser: true,
		Entropy: driver.HostLive, Clock: driver.HostLive,
	}}
	r.Checks = []driver.Check{d.checkEngine(ctx), checkTrap(), d.checkTrees(), d.checkIDs()}
	for _, c := range controllers {
		r.Checks = append(r.Checks, d.checkCgroup(c))
	}
	var no, unsure []string
	for _, c := range r.Checks {
		switch {
		case !c.Needed:
		case c.Verdict == driver.No:
			no = append(no, c.Name+": "+c.Reason)
		case c.Verdict == driver.CannotTell:
			unsure = append(unsure, c.Name+": "+c.Reason)
		}
	}
	switch {
	case len(no) > 0:
		r.Available, r.Reason = driver.No, strings.Join(no, "; ")
	case len(unsure) > 0:
		r.Available, r.Reason = driver.CannotTell, strings.Join(unsure, "; ")
	}
	return r
}

// checkEngine runs the engine the way a role is run: in a user namespace and
// all the others, through a descriptor.
func (d *Driver) checkEngine(ctx context.Context) driver.Check {
	c := driver.Check{Name: "namespaces", Needed: true, Verdict: driver.Yes}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", engineFD), "version")
	cmd.ExtraFiles = []*os.File{d.engine}
	uid, gid := os.Geteuid(), os.Getegid()
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
	}
	if uid == 0 {
		p := d.ids.plan(0)
		attr.UidMappings, attr.GidMappings = sysMap(p.UIDs), sysMap(p.GIDs)
		attr.GidMappingsEnableSetgroups = p.DropGroups
		attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !p.DropGroups}
	}
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err == nil {
		return c
	}
	c.Verdict = driver.No
	c.Reason = fmt.Sprintf("the engine cannot be run in namespaces of its own: %v %s", err, clip(string(out), 256))
	c.Remedy = "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns) and let every user run the engine (chmod 755)"
	return c
}

// checkTrap asks for what the systrap platform stands on.
func checkTrap() driver.Check {
	c := driver.Check{Name: "systrap", Needed: true, Verdict: driver.Yes}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, trapAction()); errno != 0 {
		c.Verdict, c.Reason = driver.No, "seccomp cannot trap system calls: "+errno.Error()
		c.Remedy = "use a kernel with CONFIG_SECCOMP_FILTER"
	}
	return c
}

// checkTrees opens a detached, read-only clone of / and drops it.
func (d *Driver) checkTrees() driver.Check {
	c := driver.Check{Name: "mount trees", Needed: true, Verdict: driver.Yes}
	if os.Geteuid() != 0 {
		c.Needed = false
		c.Verdict, c.Reason = driver.CannotTell, "only a keeper in a user namespace of its own can ask"
		return c
	}
	f, err := openTree("/")
	if err != nil {
		c.Verdict, c.Reason = driver.No, err.Error()
		c.Remedy = "use Linux 5.12 or later, and give the keeper a mount namespace of its own"
		return c
	}
	f.Close()
	return c
}

func (d *Driver) checkIDs() driver.Check {
	c := driver.Check{Name: "ids", Verdict: driver.Yes}
	if d.ids.ownRanges() {
		c.Reason = fmt.Sprintf("each sandbox has %d host ids of its own", rangeSize)
		return c
	}
	switch {
	case os.Geteuid() != 0:
		c.Reason = "sandboxes have their user's own id, and subordinate ones where the host grants them"
	default:
		c.Reason = fmt.Sprintf("sandboxes share %d user ids with their keeper", count(d.ids.plan(0).UIDs))
	}
	c.Remedy = "run as root for ids of their own"
	return c
}

func (d *Driver) checkCgroup(controller string) driver.Check {
	c := driver.Check{Name: "cgroup " + controller, Verdict: driver.Yes}
	if why := d.cgroups.why[controller]; why != "" {
		c.Verdict, c.Reason = driver.No, why
		c.Remedy = "run as root, or inside a delegated cgroup v2 (systemd-run --user --scope)"
		return c
	}
	p := d.cgroups.places[controller]
	version := "v1"
	if p.V2 {
		version = "v2"
	}
	c.Reason = "cgroup " + version + " " + p.Dir
	return c
}
