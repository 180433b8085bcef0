package guest

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// identity is whom a process runs as or a file operation counts for.
type identity struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary
	home   string
	shell  string
}

// The users that exist even where /etc/passwd does not name them.
var builtin = []identity{
	{name: "root", uid: 0, gid: 0, home: "/root", shell: "/bin/sh"},
	{name: "user", uid: 1000, gid: 1000, home: "/home/user", shell: "/bin/sh"},
}

// directory answers from /etc/passwd and /etc/group, read again when they have
// changed. Guest code may write anything there: lines that make no sense are
// passed over.
type directory struct {
	passwd, group string

	mu     sync.Mutex
	pstamp stamp
	gstamp stamp
	users  []identity
	groups []groupLine
}

type groupLine struct {
	name    string
	gid     uint32
	members []string
}

// stamp tells versions of a file apart.
type stamp struct {
	ino, size, sec, nsec int64
}

const maxDatabase = 4 << 20

func stampOf(path string) stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return stamp{size: -1}
	}
	return stamp{int64(st.Ino), st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}
}

func lines(path string) [][]byte {
	b, err := readSmall(path, maxDatabase)
	if err != nil {
		return nil
	}
	return bytes.Split(b, []byte{'\n'})
}

// readSmall reads a whole file of at most limit bytes with as few system calls
// as that takes.
func readSmall(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4<<10)
	for n := 0; ; {
		m, err := unix.Read(fd, buf[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		}
		n += m
		if n < len(buf) {
			return buf[:n], nil
		}
		if n >= limit {
			return nil, unix.EFBIG
		}
		buf = append(buf, make([]byte, len(buf))...)
	}
}

// load brings the tables up to date. The caller holds mu.
func (d *directory) load() {
	d.loadUsers()
	if st := stampOf(d.group); st != d.gstamp {
		d.gstamp, d.groups = st, parseGroup(lines(d.group))
	}
}

func (d *directory) loadUsers() {
	if st := stampOf(d.passwd); st != d.pstamp {
		d.pstamp, d.users = st, parsePasswd(lines(d.passwd))
	}
}

func parsePasswd(in [][]byte) []identity {
	var out []identity
	for _, l := range in {
		f := strings.Split(string(l), ":")
		if len(f) < 7 || f[0] == "" {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || uid == 1<<32-1 || gid == 1<<32-1 {
			continue
		}
		id := identity{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
		if !strings.HasPrefix(id.home, "/") {
			id.home = "/"
		}
		if id.shell == "" {
			id.shell = "/bin/sh"
		}
		out = append(out, id)
	}
	return out
}

func parseGroup(in [][]byte) []groupLine {
	var out []groupLine
	for _, l := range in {
		f := strings.Split(string(l), ":")
		if len(f) < 4 || f[0] == "" {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || gid == 1<<32-1 {
			continue
		}
		out = append(out, groupLine{f[0], uint32(gid), strings.Split(f[3], ",")})
	}
	return out
}

// lookup returns the user called name, or an Invalid error.
func (d *directory) lookup(name string) (identity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	for _, list := range [][]identity{d.users, builtin} {
		for _, id := range list {
			if id.name == name {
				id.groups = d.groupsOf(id)
				return id, nil
			}
		}
	}
	return identity{}, sandbox.Errorf(sandbox.Invalid, "no such user in the sandbox").WithField("user", name).
		WithHint("users are the names in the sandbox's /etc/passwd, for instance root and user")
}

const maxGroups = 1024

func (d *directory) groupsOf(id identity) []uint32 {
	out := []uint32{id.gid}
	for _, g := range d.groups {
		for _, m := range g.members {
			if m == id.name && g.gid != id.gid && len(out) < maxGroups {
				out = append(out, g.gid)
			}
		}
	}
	return out
}

// names lists root and the users that people log in as.
func (d *directory) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loadUsers()
	var out []string
	seen := map[string]bool{}
	for _, list := range [][]identity{d.users, builtin} {
		for _, id := range list {
			if (id.uid == 0 || id.uid >= 1000 && id.uid < 60000) && !seen[id.name] && len(out) < 64 {
				seen[id.name] = true
				out = append(out, id.name)
			}
		}
	}
	return out
}

// owner and groupName return names for ids, or the number.
func (d *directory) owner(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, list := range [][]identity{d.users, builtin} {
		for _, id := range list {
			if id.uid == uid {
				return id.name
			}
		}
	}
	return strconv.FormatUint(uint64(uid), 10)
}

func (d *directory) groupName(gid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.groups {
		if g.gid == gid {
			return g.name
		}
	}
	for _, id := range builtin {
		if id.gid == gid {
			return id.name
		}
	}
	return strconv.FormatUint(uint64(gid), 10)
}

// identify returns the user of a request: the one it names, else the sandbox's
// default.
func (s *Server) identify(name string) (identity, error) {
	if name == "" {
		name = s.defaults().User
	}
	if name == "" {
		name = "user"
	}
	id, err := s.users.lookup(name)
	if err != nil {
		return id, err
	}
	if !s.root && int(id.uid) != os.Geteuid() {
		return id, sandbox.Errorf(sandbox.Unsupported, "this boundary has one user only").WithField("user", name)
	}
	return id, nil
}
