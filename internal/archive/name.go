package archive

import (
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// maxComponent is NAME_MAX of Linux.
const maxComponent = 255

func refuse(name, format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.Invalid, format, args...).WithField("entry", name)
}

// splitName returns the components of an entry's name: none for the root
// itself. It refuses every name that could mean something outside the root.
func splitName(name string, depth int) ([]string, error) {
	switch {
	case name == "":
		return nil, refuse(name, "an entry has no name")
	case len(name) >= sandbox.MaxPath:
		return nil, refuse(name, "the name of an entry has %d bytes or more", sandbox.MaxPath)
	case strings.IndexByte(name, 0) >= 0:
		return nil, refuse(name, "the name of an entry has a NUL byte")
	case name[0] == '/':
		return nil, refuse(name, "the name of an entry is absolute").
			WithHint("archive the directory from inside it: tar -C DIR -cf FILE .")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, refuse(name, "the name of an entry has a '..' component").
				WithHint("archive the directory from inside it: tar -C DIR -cf FILE .")
		case len(part) > maxComponent:
			return nil, refuse(name, "a component of the name has more than %d bytes", maxComponent)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > depth {
		return nil, refuse(name, "the entry lies more than %d directories deep", depth)
	}
	return parts, nil
}

// Links says which symbolic links may be unpacked. None is ever followed.
type Links int

// The rules for links.
const (
	// LinksInside refuses links whose target is absolute or climbs out of the
	// unpacked tree.
	LinksInside Links = iota
	// LinksSkip leaves such links out and reports them.
	LinksSkip
	// LinksRooted allows absolute targets too, for a tree that will be
	// somebody's root, and refuses relative ones that climb above it.
	LinksRooted
)

// linkEscapes tells whether a link that lies level directories below the top of
// its tree, and has this target, points out of the tree, and why. Inside a tree
// that is nobody's root '..' may only stand at the beginning of a target:
// behind the name of another link it could lead anywhere.
func linkEscapes(level int, target string, rooted bool) (bool, string) {
	if strings.HasPrefix(target, "/") {
		return !rooted, "the target of a link is absolute"
	}
	named := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if level--; level < 0 || named && !rooted {
				return true, "the target of a link lies outside"
			}
		default:
			named = true
			level++
		}
	}
	return level < 0, "the target of a link lies outside"
}

// LeadsOut reports whether the link of an entry, whose name has no '..', points
// out of its archive: by an absolute target or by one that climbs out.
func LeadsOut(name, target string) bool {
	level := 0
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			level++
		}
	}
	out, _ := linkEscapes(level-1, target, false)
	return out
}

// checkTarget refuses targets that no kernel takes.
func checkTarget(name, target string) error {
	switch {
	case target == "":
		return refuse(name, "a link has no target")
	case len(target) >= sandbox.MaxPath:
		return refuse(name, "the target of a link has %d bytes or more", sandbox.MaxPath)
	case strings.IndexByte(target, 0) >= 0:
		return refuse(name, "the target of a link has a NUL byte")
	}
	return nil
}
