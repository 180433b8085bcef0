package template

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// HostOptions says what the host template shows beyond /usr and its like.
type HostOptions struct {
	// UsrLocal shows /usr/local, which is empty otherwise: what an
	// administrator put there by hand is nobody's package.
	UsrLocal bool
	// Extra are more directories to show read-only where they are, for
	// instance /opt/node.
	Extra []string

	base string // root of the host's file system; "" is the machine's own
}

// programDirs are where programs and libraries lie. On most hosts all but the
// first are links into it.
var programDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

const usrLocal = "/usr/local"

func hostDetails() Details {
	return Details{
		Template: sandbox.Template{Name: KindHost, Kind: KindHost, HostBacked: true},
		Version:  recordVersion,
	}
}

// hostPlan is the host template as it would be made now.
type hostPlan struct {
	o      HostOptions
	shift  bool
	inputs []string // every path of the host that was looked at
	binds  []driver.Bind
	mask   bool // an empty directory covers /usr/local
	nodes  map[string]node
	bytes  int64
}

// node is one file of the skeleton: its path has no slash in front.
type node struct {
	kind   fs.FileMode // fs.ModeDir, fs.ModeSymlink or 0
	mode   fs.FileMode // permissions, with fs.ModeSticky
	data   string      // content or target
	user   bool        // belongs to user
	anyone bool        // without owners: everybody may write
}

// planHost looks at the host. Nothing is followed that is not shown, and
// nothing is shown that some user of the host could not read.
func planHost(o HostOptions, shift bool) (*hostPlan, error) {
	p := &hostPlan{o: o, shift: shift, nodes: map[string]node{}}
	p.addBase()
	if err := p.addPrograms(); err != nil {
		return nil, err
	}
	if err := p.addExtra(); err != nil {
		return nil, err
	}
	if err := p.addEtc(); err != nil {
		return nil, err
	}
	p.addSynthetic()
	p.dropLinks()
	return p, nil
}

// at is the path on the host of a path in the template.
func (p *hostPlan) at(name string) string {
	if p.o.base == "" {
		return name
	}
	return filepath.Join(p.o.base, name)
}

// look is lstat of a path in the template on the host, noted as an input.
func (p *hostPlan) look(name string) (unix.Stat_t, bool) {
	p.inputs = append(p.inputs, name)
	var st unix.Stat_t
	return st, unix.Lstat(p.at(name), &st) == nil
}

// openDir tells whether a directory is open to everybody.
func openDir(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o005 == 0o005
}

func (p *hostPlan) addBase() {
	dir := func(name string, mode fs.FileMode) { p.nodes[name] = node{kind: fs.ModeDir, mode: mode} }
	for _, f := range furniture {
		dir(f.dir, f.mode)
	}
	for _, d := range []string{"opt", "mnt", "media", "srv", "boot", "var/lib", "var/cache", "var/log", "var/spool", "run/lock"} {
		dir(d, 0o755)
	}
	p.nodes["var/run"] = node{kind: fs.ModeSymlink, data: "/run"}
	p.nodes["var/lock"] = node{kind: fs.ModeSymlink, data: "/run/lock"}
	if p.shift { // otherwise the guest makes it for user
		p.nodes[strings.TrimPrefix(userHome, "/")] = node{kind: fs.ModeDir, mode: 0o755, user: true}
	}
	p.nodes["workspace"] = node{kind: fs.ModeDir, mode: 0o755, user: true, anyone: true}
}

// addPrograms binds the directories of programs, and copies the links among
// them.
func (p *hostPlan) addPrograms() error {
	for _, d := range programDirs {
		st, ok := p.look(d)
		switch {
		case !ok:
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			to, err := os.Readlink(p.at(d))
			if err == nil && strings.HasPrefix(filepath.Join("/", to), "/usr/") {
				p.nodes[d[1:]] = node{kind: fs.ModeSymlink, data: to}
			}
		case openDir(&st):
			p.bind(d)
		}
	}
	if len(p.binds) == 0 {
		return sandbox.Errorf(sandbox.Unsupported, "this host has no /usr that every user may read, so there is no host template").
			WithField("template", KindHost).WithHint("import a root file system: `belljar template import NAME PATH`")
	}
	if st, ok := p.look(usrLocal); ok && !p.o.UsrLocal && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		p.mask = true
	}
	return nil
}

func (p *hostPlan) bind(name string) {
	p.nodes[name[1:]] = node{kind: fs.ModeDir, mode: 0o755}
	p.binds = append(p.binds, driver.Bind{Source: p.at(name), Target: name})
}

// addExtra binds what the installation chose.
func (p *hostPlan) addExtra() error {
	for _, e := range p.o.Extra {
		if err := sandbox.CheckPath("host template directory", e); err != nil {
			return err
		}
		e = filepath.Clean(e)
		for _, own := range []string{"/etc", "/proc", "/sys", "/dev", "/run", "/tmp", "/var", "/root", "/home"} {
			if e == "/" || e == own || e == "/usr" || strings.HasPrefix(e, own+"/") {
				return sandbox.Errorf(sandbox.Invalid, "this cannot be part of the host template").WithField("host template directory", e)
			}
		}
		if err := p.openToAll(e); err != nil {
			return err
		}
		if inside(e, usrLocal) && p.mask {
			return sandbox.Errorf(sandbox.Invalid, "this lies in /usr/local, which is hidden").WithField("host template directory", e).
				WithHint("show all of /usr/local instead")
		}
		if inside(e, "/usr") {
			continue // shown already
		}
		for d := filepath.Dir(e); d != "/"; d = filepath.Dir(d) {
			p.nodes[d[1:]] = node{kind: fs.ModeDir, mode: 0o755}
		}
		p.bind(e)
	}
	return nil
}

// openToAll checks that every user may read the directory and reach it.
func (p *hostPlan) openToAll(name string) error {
	for d := name; d != "/"; d = filepath.Dir(d) {
		st, ok := p.look(d)
		if !ok || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o001 == 0 || d == name && !openDir(&st) {
			return sandbox.Errorf(sandbox.Invalid, "this is not a directory that every user of the host may read").
				WithField("host template directory", name)
		}
	}
	return nil
}

func inside(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// shown tells whether a path in the template exists in it, as far as its
// beginning tells.
func (p *hostPlan) shown(name string) bool {
	if p.mask && inside(name, usrLocal) {
		return false
	}
	for _, b := range p.binds {
		if inside(name, b.Target) {
			return true
		}
	}
	for _, d := range programDirs[1:] {
		if n, ok := p.nodes[d[1:]]; ok && n.kind == fs.ModeSymlink && inside(name, d) {
			return true
		}
	}
	if inside(name, "/proc") || inside(name, "/run") {
		return true
	}
	_, ok := p.nodes[strings.TrimPrefix(name, "/")]
	return ok
}

// dropLinks removes links to what is not shown: they would tell of it.
func (p *hostPlan) dropLinks() {
	for again := true; again; {
		again = false
		for name, n := range p.nodes {
			if n.kind != fs.ModeSymlink || !strings.HasPrefix(name, "etc/") {
				continue
			}
			to := n.data
			if !filepath.IsAbs(to) {
				to = filepath.Join("/", filepath.Dir(name), to)
			}
			if !p.shown(filepath.Clean(to)) {
				delete(p.nodes, name)
				again = true // another link may have led here
			}
		}
	}
}

// resolveHost returns the root of the host template, from the cache when the
// host has not changed.
func (s *Store) resolveHost(ctx context.Context) (driver.Root, sandbox.Template, error) {
	shift := canChown()
	if root, ok := s.cachedHost(shift); ok {
		return root, hostDetails().Template, nil
	}
	root, err := s.makeHost(ctx, shift)
	return root, hostDetails().Template, err
}

// makeHost makes the skeleton, one process at a time.
func (s *Store) makeHost(ctx context.Context, shift bool) (driver.Root, error) {
	l, err := s.lock(ctx, unix.LOCK_SH) // makes the directory too
	if err != nil {
		return driver.Root{}, err
	}
	l.Close()
	dir := filepath.Join(s.dir, hostDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return driver.Root{}, storeError("mkdir", err)
	}
	maker, err := os.Open(dir)
	if err != nil {
		return driver.Root{}, storeError("open", err)
	}
	defer maker.Close()
	if err := flock(maker, unix.LOCK_EX); err != nil {
		return driver.Root{}, storeError("lock", err)
	}
	if root, ok := s.cachedHost(shift); ok { // made while we waited
		return root, nil
	}
	return s.remakeHost(ctx, shift)
}
