package filetree

import (
	"iter"
	"slices"
	"strings"
)

// Kind is what has happened to a name.
type Kind string

// The kinds of difference, as docker writes them.
const (
	Added   Kind = "A"
	Changed Kind = "C"
	Deleted Kind = "D"
)

// Difference is one name at which a sandbox differs from its template. Of what
// was deleted only Path and the type that it had are known.
type Difference struct {
	Kind Kind
	Entry
}

// Own are the paths at which Belljar itself makes something in every sandbox, its
// host name and number among them.
var Own = []string{
	"/.belljar", "/run/belljar", "/tmp/.X11-unix",
	"/etc/hostname", "/etc/machine-id", "/var/lib/dbus/machine-id",
}

// Diff compares a list with the template that lies below it and returns what
// differs, sorted by path. What lies at a path of skip or below one is left out.
// Directories on the way to a difference are changed, as their times are.
func Diff(entries iter.Seq2[Entry, error], lower *Lower, skip []string) ([]Difference, error) {
	d := &differ{lower: lower, skip: skip}
	for e, err := range entries {
		if err == nil {
			err = d.entry(e)
		}
		if err != nil {
			return nil, err
		}
	}
	d.leave("")
	d.out = slices.DeleteFunc(d.out, func(x Difference) bool { return x.Kind == "" })
	slices.SortFunc(d.out, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return d.out, nil
}

type differ struct {
	lower *Lower
	skip  []string
	out   []Difference
	above []above // the directories that the next entry may lie in
}

// above is a directory on the way to where the list is.
type above struct {
	path  string // without a slash at the end
	fresh bool   // nothing of the template is in it
	// own and other tell that it has something of skip, and something else; place
	// is where in the result it is itself.
	own, other bool
	place      int
	// gone are the names that an opaque directory hides, until the list has them.
	gone map[string]bool
}

func (d *differ) skipped(path string) bool {
	return slices.ContainsFunc(d.skip, func(s string) bool { return path == s || strings.HasPrefix(path, s+"/") })
}

// leave closes the directories that path does not lie in.
func (d *differ) leave(path string) {
	for len(d.above) > 0 {
		a := d.above[len(d.above)-1]
		if path != "" && strings.HasPrefix(path, a.path+"/") {
			return
		}
		for name := range a.gone {
			d.deleted(a.path + "/" + name)
		}
		d.above = d.above[:len(d.above)-1]
		if a.place < 0 {
			continue
		}
		ours := a.own && !a.other && len(a.gone) == 0
		if ours {
			d.out[a.place].Kind = "" // on the way to what is ours and to nothing else
		}
		up := &d.above[len(d.above)-1]
		up.own, up.other = up.own || ours, up.other || !ours
	}
}

func (d *differ) deleted(path string) {
	if d.skipped(path) {
		return
	}
	if t, err := d.lower.Type(path); err == nil && t != "" {
		d.out = append(d.out, Difference{Deleted, Entry{Path: path, Type: t}})
	}
}

func (d *differ) entry(e Entry) error {
	if e.Path == "/" {
		d.above = []above{{path: "", place: -1}}
		return nil
	}
	d.leave(e.Path)
	if len(d.above) == 0 {
		return bad("is in no order")
	}
	up := &d.above[len(d.above)-1]
	dir, name := e.Path[:strings.LastIndexByte(e.Path, '/')], e.Path[strings.LastIndexByte(e.Path, '/')+1:]
	if dir != up.path {
		return bad("is in no order")
	}
	delete(up.gone, name)
	var was Type
	if !up.fresh {
		var err error
		if was, err = d.lower.Type(e.Path); err != nil {
			was = e.Type // not ours to look at, and so of the template
		}
	}
	skipped := d.skipped(e.Path)
	up.own, up.other = up.own || skipped, up.other || !skipped && e.Type != Dir
	switch {
	case e.Type == Gone:
		d.deleted(e.Path)
		return nil
	case skipped:
	case was == "":
		d.out = append(d.out, Difference{Added, e})
	default:
		d.out = append(d.out, Difference{Changed, e})
	}
	if e.Type == Dir {
		d.enter(e, was, skipped)
	}
	return nil
}

func (d *differ) enter(e Entry, was Type, skipped bool) {
	a := above{path: e.Path, fresh: was != Dir, place: len(d.out) - 1}
	if skipped {
		a.place = -1
	}
	if was == Dir && e.Opaque {
		names, err := d.lower.Names(e.Path)
		if err == nil {
			a.gone = map[string]bool{}
			for _, n := range names {
				a.gone[n] = true
			}
		}
	}
	d.above = append(d.above, a)
}
