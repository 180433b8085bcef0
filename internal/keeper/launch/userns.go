package launch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS

// maxIDs is the number of ids inside, 0 included.
const maxIDs = 65536

// runMapped starts the engine in a new user namespace: with a range of ids
// where the host grants one, else with one.
func (s *spawn) runMapped() error {
	sub, err := findSubIDs()
	if err != nil {
		s.idsReason = sandbox.AsError(err).Message
		return s.runOne()
	}
	return s.runRange(sub)
}

// runOne maps the caller to 0, which needs nobody's help.
func (s *spawn) runOne() error {
	s.ids = "one"
	return s.exec(&syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  namespaces,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	})
}

// runRange has newuidmap and newgidmap write the maps while the engine starts.
// Its first process has no user id until then, and would lose its rights over
// the namespace at exec: ambient capabilities keep them.
func (s *spawn) runRange(sub *subIDs) error {
	r, w, err := os.Pipe()
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "cannot make a pipe: %w", err)
	}
	defer r.Close()
	defer w.Close() // its end of file lets the engine go on
	s.ids = "range"
	args, files := s.args, s.files
	s.pass("mapped", r)
	if err := s.exec(&syscall.SysProcAttr{Setsid: true, Cloneflags: namespaces, AmbientCaps: allCaps()}); err != nil {
		return err
	}
	if err := sub.write(s.cmd.Process.Pid); err != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait() // it was killed
		s.args, s.files, s.idsReason = args, files, err.Error()
		return s.runOne()
	}
	return nil
}

func allCaps() []uintptr {
	last := uintptr(unix.CAP_LAST_CAP)
	if b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 8); err == nil {
			last = uintptr(n)
		}
	}
	caps := make([]uintptr, 0, last+1)
	for c := range last + 1 {
		caps = append(caps, c)
	}
	return caps
}

// subIDs is how to map a range.
type subIDs struct {
	newuidmap, newgidmap string
	uid, gid             idRange
}

type idRange struct{ start, count int }

func findSubIDs() (*subIDs, error) {
	var s subIDs
	var err error
	if s.newuidmap, err = exec.LookPath("newuidmap"); err != nil {
		return nil, sandbox.Errorf(sandbox.Unsupported, "newuidmap is not installed")
	}
	if s.newgidmap, err = exec.LookPath("newgidmap"); err != nil {
		return nil, sandbox.Errorf(sandbox.Unsupported, "newgidmap is not installed")
	}
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	for file, to := range map[string]*idRange{"/etc/subuid": &s.uid, "/etc/subgid": &s.gid} {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Unsupported, "%s cannot be read", file)
		}
		r, ok := parseSubIDs(b, names)
		if !ok {
			return nil, sandbox.Errorf(sandbox.Unsupported, "%s has no range for user %s", file, names[len(names)-1])
		}
		*to = r
	}
	return &s, nil
}

// parseSubIDs returns the largest range that a file in the form of subuid(5)
// grants to one of names.
func parseSubIDs(b []byte, names []string) (idRange, bool) {
	var best idRange
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		f := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(f) != 3 {
			continue
		}
		start, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 != nil || err2 != nil || count == 0 || start == 0 {
			continue
		}
		for _, n := range names {
			if f[0] == n && int(count) > best.count {
				best = idRange{int(start), int(count)}
			}
		}
	}
	return best, best.count > 0
}

// write maps ids of the process: 0 to the caller, the rest to the range.
func (s *subIDs) write(pid int) error {
	for _, m := range []struct {
		prog string
		own  int
		sub  idRange
	}{{s.newuidmap, os.Geteuid(), s.uid}, {s.newgidmap, os.Getegid(), s.gid}} {
		args := []string{strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1",
			"1", strconv.Itoa(m.sub.start), strconv.Itoa(min(m.sub.count, maxIDs-1))}
		if out, err := exec.Command(m.prog, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %v: %s", m.prog, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// explainStart says what keeps the engine from being started.
func explainStart(err error, engine string) error {
	why, hint := usernsRefusal(os.Geteuid(), readSys)
	switch {
	case errors.Is(err, unix.EPERM) && os.Geteuid() == 0:
		return sandbox.Errorf(sandbox.Unsupported, "root may not make a mount namespace here: CAP_SYS_ADMIN is missing").
			WithHint("give this container CAP_SYS_ADMIN, or run as an ordinary user on a host that allows user namespaces").WithCause(err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS), errors.Is(err, unix.EACCES) && why != "":
		if why == "" {
			why, hint = "the kernel refuses user namespaces to this user", "run as root, or look into `belljar doctor`"
		}
		return sandbox.Errorf(sandbox.Unsupported, "cannot make a user namespace: %s", why).WithHint("%s", hint).WithCause(err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return sandbox.Errorf(sandbox.Unavailable, "no process can be started now: %v", err).WithHint("try again; see ulimit -u").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unsupported, "%s cannot be run: %v", EngineName, err).WithField("engine", engine).WithCause(err)
}

func readSys(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// usernsRefusal returns which setting of the host refuses user namespaces to
// uid, and the remedy; "" for none that is known.
func usernsRefusal(uid int, read func(string) string) (why, hint string) {
	switch {
	case uid == 0:
		return "", ""
	case read("/proc/sys/user/max_user_namespaces") == "0":
		return "user.max_user_namespaces is 0", "sudo sysctl user.max_user_namespaces=15000"
	case read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "kernel.unprivileged_userns_clone is 0", "sudo sysctl kernel.unprivileged_userns_clone=1"
	case read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
			"sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give belljar-engine an AppArmor profile with userns"
	}
	return "", ""
}
