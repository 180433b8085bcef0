package workspace

import (
	"slices"
	"strings"
)

// configEntry is one key of a git configuration with its value.
type configEntry struct {
	section, sub, name, value string
	named                     bool // has a subsection, which may be empty
	gitDir                    string
}

func (e configEntry) key() string {
	if e.named {
		return e.section + "." + e.sub + "." + e.name
	}
	return e.section + "." + e.name
}

// safeKeys are the keys without a subsection that execute nothing and write
// nowhere, whatever their value.
var safeKeys = map[string][]string{
	"core": {"repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase",
		"precomposeunicode", "symlinks", "autocrlf", "eol", "safecrlf", "compression", "loosecompression",
		"bigfilethreshold", "sparsecheckout", "sparsecheckoutcone", "untrackedcache", "preloadindex",
		"splitindex", "longpaths", "quotepath", "abbrev", "trustctime", "checkstat", "hidedotfiles",
		"commentchar", "deltabasecachelimit", "packedgitlimit", "packedgitwindowsize", "multipackindex",
		"commitgraph", "warnambiguousrefs", "whitespace"},
	"extensions": {"objectformat", "compatobjectformat", "refstorage", "partialclone", "worktreeconfig",
		"preciousobjects", "noop", "noop-v1", "relativeworktrees"},
	"user":      {"name", "email", "useconfigonly"},
	"author":    {"name", "email"},
	"committer": {"name", "email"},
	"init":      {"defaultbranch"},
	"pull":      {"rebase", "ff"},
	"push":      {"default", "autosetupremote", "followtags"},
	"fetch":     {"prune", "prunetags", "recursesubmodules", "parallel", "writecommitgraph"},
	"merge":     {"ff", "conflictstyle", "renames", "autostash", "log"},
	"rebase":    {"autostash", "autosquash", "updaterefs"},
	"diff":      {"algorithm", "renames", "mnemonicprefix", "colormoved", "context"},
	"rerere":    {"enabled", "autoupdate"},
	"gc":        {"auto", "autodetach", "autopacklimit", "pruneexpire", "writecommitgraph"},
	"pack":      {"threads", "windowmemory", "packsizelimit", "writebitmaps"},
	"index":     {"version", "threads", "skiphash", "sparse"},
	"feature":   {"manyfiles", "experimental"},
	"status":    {"showuntrackedfiles", "submodulesummary", "branch", "short"},
	"submodule": {"recurse", "active", "fetchjobs"},
	"branch":    {"autosetupmerge", "autosetuprebase", "sort"},
	"commit":    {"cleanup", "verbose", "status"},
	"log":       {"date", "decorate", "follow"},
	"advice":    {"detachedhead", "addignoredfile", "skippedcherrypicks"},
	"lfs":       {"repositoryformatversion"},
}

// safeSubKeys are the keys with a subsection of which the same is true.
var safeSubKeys = map[string][]string{
	"remote": {"fetch", "push", "tagopt", "mirror", "prune", "prunetags", "promisor", "partialclonefilter",
		"skipdefaultupdate", "skipfetchall", "gh-resolved", "followremotehead"},
	"branch":    {"merge", "rebase", "description", "vscode-merge-base", "gh-merge-base", "github-pr-owner-number"},
	"submodule": {"active", "branch", "ignore", "fetchrecursesubmodules", "shallow"},
	"lfs":       {"access", "locksverify"},
}

// urlKeys are keys whose value is a URL or the name of a remote.
var urlKeys = map[string][]string{
	"remote":    {"url", "pushurl"},
	"branch":    {"remote", "pushremote"},
	"submodule": {"url"},
}

// why tells what speaks against the entry, or nothing.
func (e configEntry) why() string {
	if !e.named {
		switch {
		case e.section == "core" && e.name == "worktree":
			return e.worktree()
		case slices.Contains(safeKeys[e.section], e.name):
			return ""
		}
		return notListed
	}
	switch {
	case slices.Contains(urlKeys[e.section], e.name):
		return badURL(e.value)
	case e.section == "submodule" && e.name == "update":
		if slices.Contains([]string{"checkout", "rebase", "merge", "none"}, e.value) {
			return ""
		}
		return "could run a command"
	case slices.Contains(safeSubKeys[e.section], e.name):
		return ""
	}
	return notListed
}

const notListed = "is not among the keys that a sandbox may set: git could run or trust what it names"

// badURL refuses remote helpers, which name programs, and what ssh could take
// for an option.
func badURL(url string) string {
	switch {
	case strings.HasPrefix(url, "-"):
		return "looks like an option"
	case strings.ContainsAny(url, "\n\t"):
		return "has a line break"
	}
	if helper, _, ok := strings.Cut(url, "::"); ok && !strings.ContainsAny(helper, "/@[") {
		return "names a helper program"
	}
	return ""
}

// worktree allows what git writes for a submodule: as many steps up as lead from
// the repository to the directory that holds .git, then down into that.
func (e configEntry) worktree() string {
	const bad = "leads out of the repository"
	parts := strings.Split(e.gitDir, "/")
	git := -1
	for i, part := range parts {
		if Fold(part) == ".git" {
			git = i
		}
	}
	if git < 0 || git+1 >= len(parts) || Fold(parts[git+1]) != "modules" {
		return bad
	}
	down := strings.Split(e.value, "/")
	for range len(parts) - git {
		if len(down) == 0 || down[0] != ".." {
			return bad
		}
		down = down[1:]
	}
	if len(down) == 0 {
		return bad
	}
	for _, part := range down {
		if f := Fold(part); f == "" || f == "." || f == ".." || f == ".git" {
			return bad
		}
	}
	return ""
}
