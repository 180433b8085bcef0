package sandbox

import (
	"fmt"
	"path"
	"strings"
	"time"
)

func sprint(v any) string { return fmt.Sprint(v) }

// DefaultTemplate is what a [Spec] without a template starts from.
const DefaultTemplate = "host"

// Spec is what a caller asks for. The zero value of every field has a
// meaning: the installation's default.
type Spec struct {
	Name     string `json:"name,omitempty"`
	Template string `json:"template,omitempty"` // default [DefaultTemplate]
	// Snapshot is the ID or name of one to start from, in the place of a
	// template: what it was saved with it settles.
	Snapshot    string            `json:"snapshot,omitempty"`
	Boundary    Boundary          `json:"boundary,omitempty"` // default [GVisor]
	AllowWeaker bool              `json:"allow_weaker,omitempty"`
	Limits      Limits            `json:"limits,omitzero"`
	Env         map[string]string `json:"env,omitempty"`     // seen by every process inside
	Workdir     string            `json:"workdir,omitempty"` // default: the user's home
	User        string            `json:"user,omitempty"`    // default "user"
	Hostname    string            `json:"hostname,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Timeout     time.Duration     `json:"timeout,omitempty"` // life of the sandbox, in nanoseconds; 0: none
	// OnTimeout is what happens when Timeout is over; default [OnTimeoutKill].
	OnTimeout OnTimeout         `json:"on_timeout,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// AutoRemove has the sandbox killed when the command that it is made with
	// has ended; without a command it is an error.
	AutoRemove bool `json:"auto_remove,omitempty"`
}

// OnTimeout is what happens to a sandbox whose timeout is over.
type OnTimeout string

// What can happen. A sandbox that was paused by its timeout has the whole of it
// again when it is resumed.
const (
	OnTimeoutKill  OnTimeout = "kill"
	OnTimeoutPause OnTimeout = "pause"
)

// Mount puts a directory or file of the caller's into the sandbox. The caller
// opened it with its own rights and passed the descriptor; Handle is the
// ticket that it got for it. No API takes a host path: Source is only shown.
type Mount struct {
	Handle   string `json:"handle"`
	Source   string `json:"source,omitempty"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Bounds on what a Spec may hold.
const (
	MaxEnv      = 4096
	MaxEnvBytes = 1 << 20
	MaxMounts   = 64
	MaxTimeout  = 365 * 24 * time.Hour
)

// Validate checks everything that can be checked without the host. It returns
// an [Invalid] error that names the first field at fault.
func (s *Spec) Validate() error {
	if s.Name != "" {
		if err := CheckName("name", s.Name); err != nil {
			return err
		}
	}
	if s.Template != "" {
		if err := CheckName("template", s.Template); err != nil {
			return err
		}
	}
	if s.Snapshot != "" {
		if _, err := SnapshotName(s.Snapshot); err != nil {
			return AsError(err).WithField("snapshot", s.Snapshot)
		}
	}
	if _, err := ParseBoundary(string(s.Boundary)); err != nil {
		return err
	}
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	if err := CheckEnv(s.Env); err != nil {
		return err
	}
	if s.Workdir != "" {
		if err := CheckPath("workdir", s.Workdir); err != nil {
			return err
		}
	}
	if s.Timeout < 0 || s.Timeout > MaxTimeout {
		return Errorf(Invalid, "a timeout lies between 0 (none) and %v", MaxTimeout).WithField("timeout", s.Timeout.String())
	}
	switch s.OnTimeout {
	case "", OnTimeoutKill, OnTimeoutPause:
	default:
		return Errorf(Invalid, "unknown end of a timeout").WithField("on_timeout", string(s.OnTimeout)).
			WithHint("choose %s or %s", OnTimeoutKill, OnTimeoutPause)
	}
	if s.Hostname != "" && (len(s.Hostname) > 63 || strings.ContainsFunc(s.Hostname, notHost)) {
		return Errorf(Invalid, "a host name has 1 to 63 letters, digits and '-'").WithField("hostname", s.Hostname)
	}
	return validateMounts(s.Mounts)
}

func notHost(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-')
}

func validateMounts(mounts []Mount) error {
	if len(mounts) > MaxMounts {
		return Errorf(Invalid, "at most %d mounts", MaxMounts).WithField("mounts", sprint(len(mounts)))
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		if err := CheckPath("volume target", m.Target); err != nil {
			return err
		}
		t := path.Clean(m.Target)
		for _, own := range []string{"/", "/proc", "/sys", "/dev", "/.belljar"} {
			if t == own || own != "/" && strings.HasPrefix(t, own+"/") {
				return Errorf(Invalid, "nothing may be mounted here").WithField("volume target", m.Target).
					WithHint("choose another path, for instance /workspace")
			}
		}
		if seen[t] {
			return Errorf(Invalid, "two volumes have the same target").WithField("volume target", m.Target)
		}
		seen[t] = true
	}
	return nil
}

// CheckEnv checks names, values and size of an environment.
func CheckEnv(env map[string]string) error {
	total := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return Errorf(Invalid, "an environment name is not empty and has no '=' or NUL").WithField("env", k)
		}
		if strings.Contains(v, "\x00") {
			return Errorf(Invalid, "an environment value has no NUL").WithField("env", k)
		}
		total += len(k) + len(v) + 2
	}
	if len(env) > MaxEnv || total > MaxEnvBytes {
		return Errorf(Invalid, "an environment has at most %d variables and %d bytes", MaxEnv, MaxEnvBytes).
			WithField("env", fmt.Sprintf("%d variables, %d bytes", len(env), total))
	}
	return nil
}

// MaxPath is the longest path that any API takes, as PATH_MAX of Linux.
const MaxPath = 4096

// CheckPath checks that p is an absolute path that a kernel could take. It
// does not resolve anything.
func CheckPath(field, p string) error {
	switch {
	case p == "":
		return Errorf(Invalid, "a path is not empty").WithField(field, p)
	case len(p) >= MaxPath:
		return Errorf(Invalid, "a path has less than %d bytes", MaxPath).WithField(field, p)
	case strings.ContainsRune(p, 0):
		return Errorf(Invalid, "a path has no NUL").WithField(field, p)
	case !strings.HasPrefix(p, "/"):
		return Errorf(Invalid, "the path is not absolute").WithField(field, p)
	}
	return nil
}
