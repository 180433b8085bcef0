package guest

import (
	"encoding/json"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// defaultPath is PATH inside unless the sandbox or the request sets another.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	defaultTerm = "xterm-256color"
	maxID       = 64
	maxArgs     = 64 << 10
	maxPathDirs = 128
)

// start begins a process, or returns the one that an equal request began.
func (s *Server) start(req *wire.Start) (*process, error) {
	if err := checkStart(req); err != nil {
		return nil, err
	}
	same, err := json.Marshal(req)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the request cannot be kept: %v", err)
	}
	for {
		p, mine, err := s.procs.reserve(req.ID, same)
		if err != nil {
			return nil, err
		}
		if mine {
			err := s.launch(p, req)
			s.procs.settle(p, err)
			return p, err
		}
		<-p.begun
		if p.failed == nil {
			return p, nil
		}
	}
}

func checkStart(req *wire.Start) error {
	bad := func(field, value, why string) error {
		return sandbox.Errorf(sandbox.Invalid, "%s", why).WithField(field, value)
	}
	if req.ID == "" || len(req.ID) > maxID || strings.ContainsFunc(req.ID, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) {
		return bad("id", req.ID, "a process ID has 1 to 64 of a-z and 0-9")
	}
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return bad("argv[0]", "", "no program is named")
	}
	if len(req.Argv) > maxArgs {
		return bad("argv", req.Argv[0], "too many arguments")
	}
	for _, a := range req.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return bad("argv", a, "an argument has no NUL")
		}
	}
	if req.Timeout < 0 {
		return bad("timeout", req.Timeout.String(), "a timeout is not negative")
	}
	if req.Lease < 0 {
		return bad("lease", req.Lease.String(), "a lease is not negative")
	}
	return sandbox.CheckEnv(req.Env)
}

// launch does the work of start for a process that has been reserved.
func (s *Server) launch(p *process, req *wire.Start) error {
	id, err := s.identify(req.User)
	if err != nil {
		return err
	}
	s.ensureHome(id)
	def := s.defaults()
	env := environment(id, def.Env, req)
	cwd, fallback, err := workdir(req.Cwd, def.Workdir, id)
	if err != nil {
		return err
	}
	c, err := s.child(id, req, env, cwd, fallback)
	if err != nil {
		return err
	}
	p.info = wire.Process{
		ID: req.ID, Tag: req.Tag, Argv: slices.Clone(req.Argv), Cwd: cwd, User: id.name, PTY: req.PTY != nil, Lease: req.Lease,
	}
	p.keepTree, p.lease.time = req.KeepTree, req.Lease
	ends, err := p.connect(c, req, id, max(s.defaults().Limits.OutputBytes, 0))
	if err != nil {
		return spawnError(stepDescriptors, err, req, cwd)
	}
	defer ends.close()
	if err := s.plant(p, c, req.ID, def.Limits.Processes); err != nil {
		p.abandon()
		return spawnError(stepGroup, err, req, cwd)
	}
	if c.cgroup >= 0 {
		defer unix.Close(c.cgroup)
	}
	return s.spawn(p, c, req)
}

// spawn forks and begins to pump.
func (s *Server) spawn(p *process, c *child, req *wire.Start) error {
	p.info.StartedAt = time.Now()
	pid, at, err := s.reaper.spawn(c, p.ended)
	if err != nil {
		p.tree.rootEnded()
		p.tree.empty()
		p.abandon()
		if at == stepFork && err == unix.EAGAIN {
			s.hits.add(hitProcesses)
		}
		return spawnError(at, err, req, p.info.Cwd)
	}
	p.run(pid, req.Timeout)
	return nil
}

// environment is the default one, then the sandbox's, then the request's; of
// the guest's own nothing.
func environment(id identity, sandboxEnv map[string]string, req *wire.Start) map[string]string {
	env := map[string]string{
		"PATH": defaultPath, "HOME": id.home, "USER": id.name, "LOGNAME": id.name, "SHELL": id.shell,
	}
	if req.PTY != nil {
		env["TERM"] = defaultTerm
	}
	for _, m := range []map[string]string{sandboxEnv, req.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	return env
}

// workdir is where the process begins. Only a default may fall back to /.
func workdir(asked, def string, id identity) (cwd string, fallback bool, err error) {
	if asked == "" {
		asked = def
	}
	if asked == "" {
		return path.Clean(id.home), true, nil
	}
	cwd, err = resolve("cwd", asked, id.home)
	return cwd, false, err
}

func (s *Server) child(id identity, req *wire.Start, env map[string]string, cwd string, fallback bool) (*child, error) {
	vars := make([]string, 0, len(env))
	for k, v := range env {
		vars = append(vars, k+"="+v)
	}
	slices.Sort(vars)
	dirs := []string{cwd}
	if fallback {
		dirs = append(dirs, "/")
	}
	c := &child{cgroup: -1, zero: [2]byte{'0'}, tty: req.PTY != nil, fds: [3]int{-1, -1, -1}}
	var err [4]error
	c.argv, err[0] = cstrings(req.Argv)
	c.env, err[1] = cstrings(vars)
	c.cwd, err[2] = cstrings(dirs)
	c.paths, err[3] = cstrings(candidates(req.Argv[0], env["PATH"]))
	for _, e := range err {
		if e != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "no argument, variable or path has a NUL").WithField("argv[0]", req.Argv[0])
		}
	}
	c.cwd, c.paths = c.cwd[:len(c.cwd)-1], c.paths[:len(c.paths)-1]
	c.limits = s.procs.rlimits()
	if s.root {
		c.switchUser = true
		c.uid, c.gid, c.groups = uintptr(id.uid), uintptr(id.gid), id.groups
	}
	return c, nil
}

// candidates are the files that a program's name can mean, in order.
func candidates(name, search string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var out []string
	for dir := range strings.SplitSeq(search, ":") {
		if len(out) == maxPathDirs {
			break
		}
		out = append(out, path.Join(cmpOr(dir, "."), name))
	}
	return out
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// spawnError says why a process could not begin. Not found and not executable
// are told apart as a shell does with 127 and 126: by kind.
func spawnError(at step, err error, req *wire.Start, cwd string) error {
	errno, _ := err.(unix.Errno)
	name := req.Argv[0]
	fail := func(k sandbox.Kind, why, field, value string) *sandbox.Error {
		return sandbox.Errorf(k, "%s", why).WithField(field, value).WithCause(err)
	}
	switch {
	case errno == unix.EAGAIN || errno == unix.ENOMEM || errno == unix.EMFILE || errno == unix.ENFILE:
		return fail(sandbox.ResourceExhausted, "the sandbox has no room for another process", "argv[0]", name).
			WithHint("end some of its processes, or give it more with --pids and --memory")
	case at == stepCwd && (errno == unix.ENOENT || errno == unix.ENOTDIR):
		return fail(sandbox.Invalid, "cwd does not exist", "cwd", cwd)
	case at == stepCwd:
		return fail(sandbox.Invalid, "cwd cannot be entered by the user: "+err.Error(), "cwd", cwd)
	case at == stepUser:
		return fail(sandbox.Unsupported, "the boundary does not let a process become this user: "+err.Error(), "user", req.User)
	case at != stepExec:
		return sandbox.Errorf(sandbox.Internal, "a process could not be prepared (step %d): %w", at, err)
	case errno == unix.ENOENT || errno == unix.ENOTDIR:
		if strings.Contains(name, "/") && exists(name, cwd) {
			return fail(sandbox.NotFound, "the program's interpreter is not in the sandbox", "argv[0]", name)
		}
		return fail(sandbox.NotFound, "no such program in the sandbox", "argv[0]", name).
			WithHint("name a file, or a program in the PATH of the sandbox")
	case errno == unix.E2BIG:
		return fail(sandbox.Invalid, "arguments and environment are too long together", "argv", name)
	case errno == unix.ENOEXEC:
		return fail(sandbox.Invalid, "not a program: it is neither a binary for this machine nor begins with #!", "argv[0]", name)
	case errno == unix.EACCES:
		why, hint := notExecutable(name, cwd)
		return fail(sandbox.Denied, why, "argv[0]", name).WithHint("%s", hint)
	}
	return fail(sandbox.Invalid, "cannot be executed: "+err.Error(), "argv[0]", name)
}

// notExecutable says why the kernel denies to execute a file, as far as the
// file tells.
func notExecutable(name, cwd string) (why, hint string) {
	if !strings.Contains(name, "/") {
		return "it is in the PATH and may not be executed by the user", "look at its permissions and at those of its directory: ls -l"
	}
	at := name
	if !path.IsAbs(at) {
		at = path.Join(cwd, at)
	}
	fi, err := os.Stat(at)
	switch {
	case err == nil && fi.IsDir():
		return "it is a directory", "name a program in it"
	case err == nil && fi.Mode().Perm()&0o111 == 0:
		return "the file is there but it is not executable", "chmod +x " + name + " inside, or name its interpreter: sh " + name
	}
	return "the user may not execute it", "look at the permissions of the file and of the directories above it, or use --user root"
}

func exists(name, cwd string) bool {
	if !path.IsAbs(name) {
		name = path.Join(cwd, name)
	}
	_, err := os.Stat(name)
	return err == nil
}

// plant gives the process its tree.
func (s *Server) plant(p *process, c *child, id string, max int64) error {
	if s.trees.dir > 0 {
		t, procs, err := s.trees.plant(id, max, s.reaper)
		if err == nil {
			p.tree, c.cgroup = t, procs
			return nil
		}
		if err != unix.ENOSYS {
			return err
		}
	}
	t := &procTree{mark: s.procs.nextMark(), reaper: s.reaper}
	c.limits = append(c.limits, markLimit(t.mark))
	p.tree = t
	return nil
}
