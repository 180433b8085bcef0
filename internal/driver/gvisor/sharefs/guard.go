package sharefs

import (
	"path"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// change is what somebody wants to do to a file.
type change uint8

const (
	changeContent change = iota
	changeAttrs          // permissions, times, extended attributes
	linkFrom             // give it another name
)

// form is what somebody wants to put at a name.
type form uint8

const (
	asFile form = iota
	asDir
	asSymlink
	asHardLink
	asMovedFile // a regular file that is renamed
	asMovedDir
	asMovedOther
)

// permit is nil or the error of a protected name.
func permit(ok bool) error {
	if ok {
		return nil
	}
	return unix.EROFS
}

// isRepo tells whether git takes a directory for a repository.
func isRepo(dir int) bool { return exists(dir, "objects") && exists(dir, "refs") }

// repoKinds are what names mean in a directory that is a repository, whatever
// it is called.
var repoKinds = map[workspace.GitEntry]workspace.Kind{
	workspace.EntryConfig:     workspace.GitConfig,
	workspace.EntryConfigLock: workspace.GitLock,
	workspace.EntryHooks:      workspace.GitHooks,
	workspace.EntryCommonDir:  workspace.GitCommon,
}

// named tells whether the name alone decides what an entry is.
func named(k workspace.Kind) bool { return k != workspace.Ordinary && k != workspace.Name }

// kind tells what the file n is to the rules.
func (n *node) kind() workspace.Kind {
	k := n.zone.Kind()
	if named(k) || n.root {
		return k
	}
	if is, ok := repoKinds[n.entry]; ok && n.aboveIsRepo(1) {
		return is
	}
	if n.inHooks && n.aboveIsRepo(2) {
		return workspace.GitHook
	}
	return k
}

// kindIn tells what an entry of the directory n is, or would be.
func (n *node) kindIn(name string) workspace.Kind {
	k := n.zone.Child(name).Kind()
	if named(k) {
		return k
	}
	if is, ok := repoKinds[workspace.GitEntryOf(name)]; ok && isRepo(n.fd) {
		return is
	}
	if n.entry == workspace.EntryHooks && !n.root && n.aboveIsRepo(1) {
		return workspace.GitHook
	}
	return k
}

// aboveIsRepo tells whether the directory so many levels above n is a
// repository. When it cannot be found any more, it is.
func (n *node) aboveIsRepo(levels int) bool {
	p := n.Node().FilePath()
	for range levels {
		if p == n.conn.mountPath {
			return false
		}
		p = path.Dir(p)
	}
	fd, err := openAbs(p)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	return isRepo(fd)
}

// mayChange decides about a file that is there.
func (n *node) mayChange(what change) error {
	if !n.conn.Protect {
		return nil
	}
	switch n.kind() {
	case workspace.Name, workspace.GitLock, workspace.GitHooks:
		return permit(n.made)
	case workspace.GitDir:
		return permit(n.made || n.IsDir())
	case workspace.GitConfig:
		return permit(n.made && what == changeAttrs)
	case workspace.GitHook:
		return permit(n.made && (what == changeAttrs || what == changeContent && workspace.SampleHook(n.name)))
	case workspace.GitCommon:
		return unix.EROFS
	default:
		return nil
	}
}

// mayCreate decides about a new entry of the directory n. It may have to put a
// repository's configuration out of reach first.
func (n *node) mayCreate(name string, as form) error {
	if !n.conn.Protect {
		return nil
	}
	if as == asSymlink && !n.mayLinkAt(name) {
		return unix.EROFS
	}
	switch n.kindIn(name) {
	case workspace.Name:
		if !n.made {
			return unix.EROFS
		}
	case workspace.GitDir:
		return permit(as == asDir || as == asFile && n.made)
	case workspace.GitLock:
		return permit(n.made)
	case workspace.GitHooks:
		return permit(n.made && as == asDir)
	case workspace.GitHook:
		return permit(n.made && (as == asFile || as == asMovedFile) && workspace.SampleHook(name))
	case workspace.GitConfig, workspace.GitCommon:
		return unix.EROFS
	}
	switch workspace.GitEntryOf(name) {
	case workspace.EntryObjects:
		return n.mayComplete("refs")
	case workspace.EntryRefs:
		return n.mayComplete("objects")
	}
	return nil
}

// mayLinkAt tells whether a symbolic link may be an entry of the directory n: it
// may not lead to another directory where one of the caller's was.
func (n *node) mayLinkAt(name string) bool {
	return n.zone.InDependencies() || !n.conn.made.linkTakesPlace(n.id, name, path.Join(n.Node().FilePath(), name))
}

// mayRemove decides about an entry that is there, to be removed, renamed or
// replaced.
func (n *node) mayRemove(name string, st *unix.Statx_t) error {
	if !n.conn.Protect {
		return nil
	}
	switch n.kindIn(name) {
	case workspace.Ordinary:
		return nil
	case workspace.GitDir:
		if isType(st, unix.S_IFDIR) {
			return permit(n.conn.made.has(keyOf(st)))
		}
	}
	return permit(n.made)
}

// Renamed implements lisafs.ControlFDImpl: the name, or that of a directory
// above, is another one now.
func (n *node) Renamed() {
	if !n.conn.Protect || n.root {
		return
	}
	p := n.Node().FilePath()
	n.name = path.Base(p)
	n.zone = workspace.At(n.conn.relative(p))
	n.entry = workspace.GitEntryOf(n.name)
	n.inHooks = workspace.GitEntryOf(path.Base(path.Dir(p))) == workspace.EntryHooks
	n.made = n.conn.madeAt(n, p)
}

// madeAt looks up whether the sandbox made the directory, or that of the file,
// at a path.
func (c *conn) madeAt(n *node, p string) bool {
	if n.IsDir() {
		return c.made.has(n.id)
	}
	fd, err := openAbs(path.Dir(p))
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	return stat(fd, "", &st) == nil && c.made.has(keyOf(&st))
}
