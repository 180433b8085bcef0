package workspace

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// Kind says what an entry is to the rules. Kinds from [GitDir] on need
// decisions that depend on what is there, which their callers make.
type Kind uint8

// The kinds.
const (
	// Ordinary entries may be anything.
	Ordinary Kind = iota
	// Name is an entry that a locked rule names, or one below it.
	Name
	// GitDir is an entry called .git: a repository, or a file that names one.
	GitDir
	// GitConfig is a configuration file of a repository.
	GitConfig
	// GitLock is what git writes before it renames it to a configuration file.
	GitLock
	// GitHooks is the hooks directory of a repository.
	GitHooks
	// GitHook is an entry of a hooks directory, at any depth.
	GitHook
	// GitCommon is a commondir file where git never writes one: it would send
	// git elsewhere for its configuration.
	GitCommon
)

// place is where in a tree an entry is, as far as that decides about its
// children.
type place uint8

const (
	inTree      place = iota
	inDeps            // in a dependency directory
	inName            // in, or at, something a rule names
	inGit             // .git itself
	inModules         // .git/modules or a directory in it that may be a repository
	inWorktrees       // .git/worktrees
	inWorktree        // one of .git/worktrees
	inHooks           // hooks directory, or below
	inGitRest         // any other part of a repository, which git only reads data from
)

// Zone is the place of an entry among the rules, computed one name at a time:
// a walk through directories keeps the zone of each. The zero value is the root
// of the caller's directory. Zones are comparable and need no locking.
type Zone struct {
	place place
	kind  Kind
	node  *node // where in a pattern of several names this is
	rule  *Rule
}

// Kind tells what the entry is.
func (z Zone) Kind() Kind { return z.kind }

// Rule returns the rule that covers the entry, or nil.
func (z Zone) Rule() *Rule { return z.rule }

// Class returns the class of the rule that covers the entry.
func (z Zone) Class() Class {
	if z.rule == nil {
		return Unlisted
	}
	return z.rule.Class
}

// Locked tells that the entry is one that the rules protect.
func (z Zone) Locked() bool {
	return z.kind != Ordinary && z.kind != GitLock && z.kind != GitDir
}

// Partial tells that the entry is the first part of a pattern of several names:
// ".config", say, since ".config/git" is locked.
func (z Zone) Partial() bool { return z.place == inTree && z.node.parted() }

// InGitDir tells that the entry lies in a directory called .git.
func (z Zone) InGitDir() bool { return z.place >= inGit }

// InDependencies tells that the entry lies in a dependency directory.
func (z Zone) InDependencies() bool { return z.place == inDeps }

// At returns the zone of a path beneath the root: names joined by slashes.
func At(path string) Zone {
	var z Zone
	for name := range strings.SplitSeq(path, "/") {
		if name != "" {
			z = z.Child(name)
		}
	}
	return z
}

// Child returns the zone of the entry name in a directory of zone z.
func (z Zone) Child(name string) Zone {
	f := Fold(name)
	switch z.place {
	case inName:
		return z
	case inHooks:
		return Zone{place: inHooks, kind: GitHook, rule: &hooksRule}
	}
	if f == "config.worktree" || f == "config.worktree.lock" { // git may find it wherever a .git file leads
		return configZone(f, &worktreeRule)
	}
	switch z.place {
	case inGit:
		return gitChild(f)
	case inModules:
		return modulesChild(f)
	case inWorktrees:
		return Zone{place: inWorktree}
	case inWorktree, inGitRest:
		return Zone{place: inGitRest}
	case inDeps:
		if f == ".git" {
			return gitZone
		}
		return Zone{place: inDeps}
	default:
		return z.treeChild(f)
	}
}

var gitZone = Zone{place: inGit, kind: GitDir, rule: &madeRule}

func (z Zone) treeChild(f string) Zone {
	switch {
	case f == ".git":
		return gitZone
	case dependencyDirs[f]:
		return Zone{place: inDeps}
	}
	n := z.node.next(f)
	if n == nil {
		n = patterns().next(f)
	}
	switch {
	case n == nil:
		return Zone{rule: z.rule}
	case n.rule == nil:
		return Zone{node: n, rule: z.rule}
	case n.rule.Class == Locked:
		return Zone{place: inName, kind: Name, rule: n.rule}
	default: // names in it may be locked all the same
		return Zone{node: n, rule: n.rule}
	}
}

func gitChild(f string) Zone {
	switch f {
	case "config", "config.lock":
		return configZone(f, &gitRule)
	case "hooks":
		return Zone{place: inHooks, kind: GitHooks, rule: &hooksRule}
	case "commondir":
		return Zone{place: inGitRest, kind: GitCommon, rule: &gitRule}
	case "modules":
		return Zone{place: inModules}
	case "worktrees":
		return Zone{place: inWorktrees}
	case "rebase-merge", "rebase-apply":
		return Zone{place: inGitRest, rule: &rebaseRule}
	default:
		return Zone{place: inGitRest}
	}
}

// modulesChild is for repositories of submodules, whose names may have several
// parts, so that any directory may be one or be on the way to one.
func modulesChild(f string) Zone {
	switch f {
	case "config", "config.lock", "hooks", "commondir", "rebase-merge", "rebase-apply":
		return gitChild(f)
	case "objects", "refs", "logs", "info", "branches", "lfs", "rr-cache":
		return Zone{place: inGitRest}
	case "worktrees":
		return Zone{place: inWorktrees}
	default:
		return Zone{place: inModules}
	}
}

func configZone(f string, r *Rule) Zone {
	if strings.HasSuffix(f, ".lock") {
		return Zone{place: inGitRest, kind: GitLock, rule: r}
	}
	return Zone{place: inGitRest, kind: GitConfig, rule: r}
}

// GitEntry is a name that has a meaning in a directory that git takes for a
// repository.
type GitEntry uint8

// The entries. A directory with EntryObjects and EntryRefs is a repository.
const (
	NoEntry GitEntry = iota
	EntryObjects
	EntryRefs
	EntryConfig
	EntryConfigLock
	EntryHooks
	EntryCommonDir
)

// GitEntryOf tells what a name would mean in a repository.
func GitEntryOf(name string) GitEntry {
	switch Fold(name) {
	case "objects":
		return EntryObjects
	case "refs":
		return EntryRefs
	case "config", "config.worktree":
		return EntryConfig
	case "config.lock", "config.worktree.lock":
		return EntryConfigLock
	case "hooks":
		return EntryHooks
	case "commondir":
		return EntryCommonDir
	default:
		return NoEntry
	}
}

// SampleHook tells whether a name in a hooks directory is one that git never
// runs.
func SampleHook(name string) bool {
	return strings.HasSuffix(name, ".sample") && Fold(name) == strings.ToLower(name)
}

// node is one name in the tree of patterns.
type node struct {
	children map[string]*node
	short    map[string]*node // children by their names on NTFS, see shortKey
	globs    []glob
	rule     *Rule
}

// glob is a name with any characters between its two ends.
type glob struct {
	begin, end string
	node       *node
}

func (g *glob) matches(f string) bool {
	return len(f) > len(g.begin)+len(g.end) && strings.HasPrefix(f, g.begin) && strings.HasSuffix(f, g.end)
}

// matchesShort is for names that are short names on NTFS.
func (g *glob) matchesShort(base, ext string) bool {
	_, e := shortParts(g.begin + "x" + g.end)
	b := strings.ReplaceAll(g.begin, ".", "")
	return e == ext && strings.HasPrefix(base, b[:min(len(b), 6)])
}

// parted tells that the node begins a pattern of several names.
func (n *node) parted() bool { return n != nil && len(n.children)+len(n.globs) > 0 }

// next finds the node of a folded name; a nil node has none.
func (n *node) next(f string) *node {
	if n == nil {
		return nil
	}
	if c := n.children[f]; c != nil {
		return c
	}
	for i := range n.globs {
		if n.globs[i].matches(f) {
			return n.globs[i].node
		}
	}
	base, ext, ok := shortName(f)
	if !ok {
		return nil
	}
	if c := n.short[base+"."+ext]; c != nil {
		return c
	}
	for i := range n.globs {
		if n.globs[i].matchesShort(base, ext) {
			return n.globs[i].node
		}
	}
	return nil
}

// patterns is built at its first use: most commands of the command line have
// none.
var patterns = sync.OnceValue(func() *node { return compile(rules) })

func compile(list []Rule) *node {
	root := &node{}
	for i := range list {
		at := root
		for name := range strings.SplitSeq(list[i].Pattern, "/") {
			at = at.add(Fold(name))
		}
		at.rule = &list[i]
	}
	root.shorten()
	return root
}

// shorten finds the names that children have on NTFS besides their own. Where
// several have the same, the stricter one counts.
func (n *node) shorten() {
	n.short = make(map[string]*node)
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c := n.children[name]
		c.shorten()
		if key, ok := shortKey(name); ok {
			if old := n.short[key]; old == nil || c.strictness() > old.strictness() {
				n.short[key] = c
			}
		}
	}
	for i := range n.globs {
		n.globs[i].node.shorten()
	}
}

func (n *node) strictness() int {
	switch {
	case n.rule != nil && n.rule.Class == Locked:
		return 2
	case n.parted():
		return 1
	default:
		return 0
	}
}

func (n *node) add(name string) *node {
	if begin, end, ok := strings.Cut(name, "*"); ok {
		child := &node{}
		n.globs = append(n.globs, glob{begin, end, child})
		return child
	}
	if n.children == nil {
		n.children = make(map[string]*node)
	}
	if n.children[name] == nil {
		n.children[name] = &node{}
	}
	return n.children[name]
}
