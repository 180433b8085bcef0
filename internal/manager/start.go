package manager

import (
	"strconv"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

func count(n int64) string { return strconv.FormatInt(n, 10) }

// Bounds on what a Start may hold: what execve takes.
const (
	maxArgs     = 4096
	maxArgBytes = 1 << 20
	maxTag      = 256
)

// check is everything that can be said without the guest.
func (s *Start) check() error {
	if err := CheckProcessID(s.ID); err != nil {
		return err
	}
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return sandbox.Errorf(sandbox.Invalid, "a process needs a program").WithField("argv", "")
	}
	total := 0
	for _, a := range s.Argv {
		total += len(a) + 1
		for i := range len(a) {
			if a[i] == 0 {
				return sandbox.Errorf(sandbox.Invalid, "an argument has no NUL").WithField("argv", a)
			}
		}
	}
	if len(s.Argv) > maxArgs || total > maxArgBytes {
		return sandbox.Errorf(sandbox.Invalid, "a command has at most %d arguments and %d bytes", maxArgs, maxArgBytes).
			WithField("argv", strconv.Itoa(len(s.Argv))+" arguments, "+strconv.Itoa(total)+" bytes")
	}
	if err := sandbox.CheckEnv(s.Env); err != nil {
		return err
	}
	if s.Cwd != "" {
		// The guest knows the user's home.
		if err := sandbox.CheckPath("cwd", strings.TrimPrefix(s.Cwd+"/", "~")); err != nil {
			return err
		}
	}
	if s.Timeout < 0 || s.Timeout > sandbox.MaxTimeout {
		return sandbox.Errorf(sandbox.Invalid, "a timeout lies between 0 (none) and %v", sandbox.MaxTimeout).WithField("timeout", s.Timeout.String())
	}
	if s.Lease < 0 || s.Lease > sandbox.MaxTimeout {
		return sandbox.Errorf(sandbox.Invalid, "a lease lies between 0 (none) and %v", sandbox.MaxTimeout).WithField("lease", s.Lease.String())
	}
	if s.Lease > 0 && s.Capture {
		return sandbox.Errorf(sandbox.Invalid, "a process whose output is kept has the daemon for a reader, and needs no lease").WithField("lease", s.Lease.String())
	}
	if len(s.Tag) > maxTag {
		return sandbox.Errorf(sandbox.Invalid, "a tag has at most %d bytes", maxTag).WithField("tag", s.Tag)
	}
	return nil
}

// CheckProcessID checks that s may name a process: 1 to 64 of a-z and 0-9.
func CheckProcessID(s string) error {
	ok := len(s) >= 1 && len(s) <= 64
	for i := range len(s) {
		c := s[i]
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !ok {
		return sandbox.Errorf(sandbox.Invalid, "a process ID has 1 to 64 of a-z and 0-9").WithField("process", s)
	}
	return nil
}
