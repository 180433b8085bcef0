package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Names by which belljar-engine knows which of gVisor's roles it plays.
const (
	argv0Sentry = "runsc-sandbox"
	argv0Gofer  = "runsc-gofer"
)

// Names that the roles give themselves, as ps shows them.
const (
	RoleSentry = "belljar-sentry"
	RoleGofer  = "belljar-gofer"
)

// engineFD is where a role finds its own program. It is run through this
// descriptor because the unprivileged ids that a role has from its first
// instruction on may not search the directory that the program lies in.
const engineFD = 3

// roleBegins is the name of a role's process before it gives itself one: the
// last part of the path by which it was run.
const roleBegins = "3"

// role is a process of gVisor's to be: its command line and descriptors.
type role struct {
	cmd   *exec.Cmd
	given []*os.File // ours no longer once the process has been started
}

// newRole prepares a role of a sandbox: argv0 chooses it, command is gVisor's
// name for it.
func (c *creation) newRole(argv0, command string) (*role, error) {
	r := &role{cmd: &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", engineFD),
		Args:       append([]string{argv0}, baseFlags(c.req.Root.Setuid)...),
		Env:        []string{},
		ExtraFiles: []*os.File{c.d.engine},
		Stderr:     c.logW,
	}}
	c.onUndo(r.closeGiven)
	if dir := c.d.opts.DebugDir; dir != "" {
		name := filepath.Join(dir, string(c.req.ID)+"."+command+".log")
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, err
		}
		r.arg("--debug=true")
		r.give("debug-log-fd", f)
	}
	r.arg(command, "--bundle="+c.req.Dir)
	return r, nil
}

// arg appends words to the command line.
func (r *role) arg(words ...string) { r.cmd.Args = append(r.cmd.Args, words...) }

// lend makes f known to the process and returns its number there.
func (r *role) lend(f *os.File) int {
	r.cmd.ExtraFiles = append(r.cmd.ExtraFiles, f)
	return 2 + len(r.cmd.ExtraFiles)
}

// give is lend with a flag that names the descriptor, after which the role
// owns f.
func (r *role) give(flag string, f *os.File) {
	r.arg("--" + flag + "=" + strconv.Itoa(r.lend(f)))
	r.given = append(r.given, f)
}

// closeGiven closes our copies of what the process has, or would have had.
func (r *role) closeGiven() {
	for _, f := range r.given {
		f.Close()
	}
	r.given = nil
}

// confine puts the process into namespaces of its own, with the ids of plan,
// and ties its life to the thread that starts it.
func (r *role) confine(ids idPlan, namespaces uintptr) {
	r.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:                     true,
		Pdeathsig:                  syscall.SIGKILL,
		Cloneflags:                 namespaces | syscall.CLONE_NEWUSER,
		UidMappings:                sysMap(ids.UIDs),
		GidMappings:                sysMap(ids.GIDs),
		GidMappingsEnableSetgroups: ids.DropGroups,
		// Root of the new user namespace. What it may do there ends with the
		// capabilities that the role gives up before it meets a guest.
		Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !ids.DropGroups},
	}
}

// baseFlags are gVisor's settings, the same for both roles.
func baseFlags(setuid bool) []string {
	return []string{
		"--network=none",
		"--directfs=true",
		"--file-access=exclusive",
		"--file-access-mounts=shared",
		"--overlay2=none", // the overlay is configured per mount
		"--host-uds=none",
		"--host-fifo=none",
		"--host-settings=ignore",
		"--ignore-cgroups=true", // ours are made before the processes start
		"--allow-suid=" + strconv.FormatBool(setuid),
		"--rootless=true", // the sentry is not to start a helper to unmount its /proc: unmountProc does
		"--traceback=single",
		"--in-sandbox-cgroup=v2",        // version 1 charges a fork to one of seven hierarchies, mostly not to the one with the limit
		"--control-rpc-stop-timeout=0s", // our connection is idle, and would hold up the end by 15 s
	}
}
