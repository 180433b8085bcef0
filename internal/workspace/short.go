package workspace

import "strings"

// shortName takes apart a folded name that has the form of the second name that
// NTFS and FAT give to files: "vscode~1", "mcp~1.jso". The ones that Windows
// makes of a checksum, from the fifth file of such a name on, are not
// recognised.
func shortName(f string) (base, ext string, ok bool) {
	i := strings.IndexByte(f, '~')
	if i < 1 || i > 6 || len(f) < i+2 || f[i+1] < '1' || f[i+1] > '9' {
		return "", "", false
	}
	rest := f[i+2:]
	if rest != "" && (rest[0] != '.' || len(rest) < 2 || len(rest) > 4) {
		return "", "", false
	}
	return f[:i], strings.TrimPrefix(rest, "."), true
}

// shortParts are what a long name contributes to its short one.
func shortParts(name string) (base, ext string) {
	base = strings.TrimLeft(name, ".")
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		base, ext = base[:i], base[i+1:]
	}
	base = strings.NewReplacer(".", "", " ", "").Replace(base)
	return base[:min(len(base), 6)], ext[:min(len(ext), 3)]
}

// shortKey joins these parts, for a name that needs a short one.
func shortKey(name string) (string, bool) {
	base, ext, _ := strings.Cut(name, ".")
	if base != "" && len(base) <= 8 && len(ext) <= 3 && !strings.ContainsAny(ext, ".") && !strings.Contains(name, " ") {
		return "", false
	}
	b, e := shortParts(name)
	return b + "." + e, true
}

// gitShort are the short names of names that have a meaning in a repository.
var gitShort = map[string]string{
	"git.": ".git", "common.": "commondir", "config.loc": "config.lock", "config.wor": "config.worktree",
	"worktr.": "worktrees", "rebase.": "rebase-merge",
}
