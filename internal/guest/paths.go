package guest

import (
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// resolve turns the path of a request into an absolute, cleaned one. A path is
// absolute, or relative to the user's home; "~" is the home. Bytes are kept as
// they are: nothing is decoded or normalised but ".", ".." and slashes.
func resolve(field, raw, home string) (string, error) {
	bad := func(why string) (string, error) {
		return "", sandbox.Errorf(sandbox.Invalid, "%s", why).WithField(field, raw)
	}
	switch {
	case raw == "":
		return bad("a path is not empty")
	case len(raw) >= sandbox.MaxPath:
		return bad("a path has less than 4096 bytes")
	case strings.IndexByte(raw, 0) >= 0:
		return bad("a path has no NUL")
	case raw == "~" || strings.HasPrefix(raw, "~/"):
		raw = home + raw[1:]
	case raw[0] == '~':
		return bad("only one's own home can be named by ~")
	case raw[0] != '/':
		raw = home + "/" + raw
	}
	p := path.Clean(raw)
	if len(p) >= sandbox.MaxPath {
		return bad("a path has less than 4096 bytes")
	}
	return p, nil
}

// target is what a file request is about.
type target struct {
	id    identity
	path  string // absolute
	slash bool   // the request's path ended in a slash: it means a directory
	query url.Values
}

// resolves tells whether the request has links followed.
func (t *target) resolves() bool { return t.query.Get("resolve") == "1" }

// target reads user and path of a request.
func (q *request) target(s *Server) (target, error) {
	values, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return target{}, sandbox.Errorf(sandbox.Invalid, "the query is not well formed: %v", err)
	}
	for k, v := range values {
		if len(v) > 1 {
			return target{}, sandbox.Errorf(sandbox.Invalid, "given more than once").WithField(k, v[1])
		}
	}
	id, err := s.identify(values.Get("user"))
	if err != nil {
		return target{}, err
	}
	s.ensureHome(id)
	raw := values.Get("path")
	p, err := resolve("path", raw, id.home)
	return target{id: id, path: p, slash: strings.HasSuffix(raw, "/"), query: values}, err
}

// rawPath returns p when it cannot be carried as a JSON string.
func rawPath(p string) []byte {
	if utf8.ValidString(p) {
		return nil
	}
	return []byte(p)
}

// Magic numbers of file systems that are windows into the kernel, not stores.
var virtual = map[int64]bool{
	unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true, unix.CGROUP_SUPER_MAGIC: true, unix.CGROUP2_SUPER_MAGIC: true,
	unix.DEBUGFS_MAGIC: true, unix.TRACEFS_MAGIC: true, unix.SECURITYFS_MAGIC: true, unix.DEVPTS_SUPER_MAGIC: true,
	unix.BPF_FS_MAGIC: true, unix.PSTOREFS_MAGIC: true, unix.BINFMTFS_MAGIC: true, unix.SELINUX_MAGIC: true,
}

func isVirtual(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && virtual[int64(st.Type)]
}

func errVirtual(field, p string) error {
	return sandbox.Errorf(sandbox.Denied, "this file system is part of the kernel: nothing is stored here").WithField(field, p)
}

// openAt opens without following the magic links of /proc, which would lead to
// what the guest itself holds open.
func openAt(dir int, p string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if flags&(unix.O_CREAT|unix.O_TMPFILE) != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(dir, p, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// fsError translates the error of a file system call about p.
func fsError(field, p string, err error) error {
	if err == nil {
		return nil
	}
	var e *sandbox.Error
	if asErr, ok := err.(*sandbox.Error); ok {
		return asErr
	}
	errno, _ := err.(unix.Errno)
	kind, why := sandbox.Internal, err.Error()
	switch errno {
	case unix.ENOENT:
		kind, why = sandbox.NotFound, "no such file or directory"
	case unix.EACCES, unix.EPERM:
		kind, why = sandbox.Denied, "permission denied"
	case unix.EROFS:
		kind, why = sandbox.Denied, "read-only file system"
	case unix.EEXIST:
		kind, why = sandbox.AlreadyExists, "exists already"
	case unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY:
		kind = sandbox.Conflict
	case unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.EFBIG, unix.ENOMEM, unix.EMLINK:
		kind = sandbox.ResourceExhausted
	case unix.ELOOP:
		kind, why = sandbox.Invalid, wire.TooManyLinks
	case unix.ENAMETOOLONG, unix.ENOTDIR, unix.EISDIR, unix.EINVAL, unix.ENXIO, unix.ENODEV:
		kind = sandbox.Invalid
	case unix.EXDEV:
		kind, why = sandbox.Invalid, "source and destination are on different file systems"
	case unix.EOPNOTSUPP, unix.ENOSYS:
		kind = sandbox.Unsupported
	}
	e = sandbox.Errorf(kind, "%s", why).WithField(field, p).WithCause(err)
	if errno == unix.ENOSPC || errno == unix.EDQUOT {
		e = e.WithHint("the sandbox's disk is full: remove files, or give it more with --disk")
	}
	return e
}
