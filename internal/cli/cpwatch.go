package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/workspace"
)

// few counts names and keeps the first of them.
type few struct {
	count int64
	names []string
}

// maxFew is how many names a warning has.
const maxFew = 5

func (f *few) add(name string) {
	if f.count++; len(f.names) < maxFew {
		f.names = append(f.names, workspace.Escape(name))
	}
}

func (f *few) String() string {
	s := strings.Join(f.names, ", ")
	if n := f.count - int64(len(f.names)); n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// tarWatch looks at a tree that comes out of a sandbox on its way: which of its
// names the host later executes or trusts, and what the guest left out.
type tarWatch struct {
	to      string // absolute path of where the tree goes; "": nowhere on this machine
	strip   bool   // to takes the place of the topmost name
	trusted few
	left    []wire.LeftOut
	// inside has links that lead out of the tree left out: a guest refuses them.
	inside bool
	links  few
	halves map[string]half // directories that have a part of a repository
}

// half tells which of the two names a directory has by which git takes it for a
// repository, whatever it is called.
type half uint8

const (
	hasObjects half = 1 << iota
	hasRefs
	both = hasObjects | hasRefs
)

// maxHalves bounds the directories that are remembered; what is beyond counts as
// a repository.
const maxHalves = 1 << 14

// repositories takes note of the directories on the way to a name that git would
// take for repositories, whose settings it then follows. Those beneath a .git are
// looked at by their names.
func (w *tarWatch) repositories(rest string) {
	parts := strings.Split(path.Clean("/" + rest)[1:], "/")
	for i, name := range parts {
		is := map[string]half{"objects": hasObjects, "refs": hasRefs}[name]
		if name == ".git" {
			return
		}
		if is == 0 {
			continue
		}
		at := path.Join(w.to, path.Join(parts[:i]...))
		if w.halves == nil {
			w.halves = map[string]half{}
		}
		was, known := w.halves[at]
		if !known && len(w.halves) >= maxHalves {
			w.trusted.add(at)
			continue
		}
		if w.halves[at] = was | is; was != both && was|is == both {
			w.trusted.add(at)
		}
	}
}

// leavesOut reports whether an entry does not pass.
func (w *tarWatch) leavesOut(h *tar.Header) bool {
	if w == nil || !w.inside || h.Typeflag != tar.TypeSymlink || !archive.LeadsOut(h.Name, h.Linkname) {
		return false
	}
	w.links.add(h.Name + " -> " + h.Linkname)
	return true
}

// watchPlace returns a watch for a copy to dst as archive.Place makes it.
func watchPlace(dst string) (*tarWatch, error) {
	abs, err := filepath.Abs(dst)
	if err != nil {
		return nil, err
	}
	w := &tarWatch{to: abs, strip: true}
	if fi, err := os.Stat(abs); err == nil {
		w.strip = !fi.IsDir()
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		w.to = real
	} else if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		w.to = filepath.Join(real, filepath.Base(abs))
	}
	return w, nil
}

// entry takes one header. It returns what the content is written to, to in the
// end, and what is to be called after it.
func (w *tarWatch) entry(h *tar.Header, to io.Writer) (content io.Writer, done func()) {
	if w == nil || w.to == "" {
		return to, func() {}
	}
	rest := h.Name
	if w.strip {
		_, rest, _ = strings.Cut(rest, "/")
	}
	w.repositories(rest)
	if h.Typeflag == tar.TypeDir {
		return to, func() {}
	}
	at := path.Join(w.to, rest)
	z := workspace.At(at)
	switch {
	case !z.Locked() && z.Kind() != workspace.GitDir, z.Kind() == workspace.GitHook && workspace.SampleHook(path.Base(at)):
		return to, func() {}
	case z.Kind() != workspace.GitConfig || h.Typeflag != tar.TypeReg:
		w.trusted.add(at)
		return to, func() {}
	}
	b := &bounded{most: workspace.MaxGitConfig + 1}
	return io.MultiWriter(to, b), func() {
		if workspace.CheckGitConfig(b.Bytes(), path.Dir(at)) != nil {
			w.trusted.add(at)
		}
	}
}

// comment takes what the guest says that it left out.
func (w *tarWatch) comment(h *tar.Header) {
	if w == nil {
		return
	}
	var left []wire.LeftOut
	if json.Unmarshal([]byte(h.PAXRecords[wire.TarComment]), &left) == nil && len(left) <= 16 {
		w.left = left
	}
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}

// leftOut groups what was left out, here and in the sandbox, by its reason.
func leftOut(s archive.Summary, said []wire.LeftOut) (reasons []string, by map[string]*few, more int64) {
	by = map[string]*few{}
	get := func(reason string) *few {
		if by[reason] == nil {
			by[reason] = &few{}
			reasons = append(reasons, reason)
		}
		return by[reason]
	}
	for _, k := range s.Skips {
		reason, _, link := strings.Cut(k.Reason, ": ")
		if link {
			get(reason).add(k.Name + " -> " + strings.TrimPrefix(k.Reason, reason+": "))
			continue
		}
		get(reason).add(k.Name)
	}
	for _, l := range said {
		f := get(l.Reason)
		for _, n := range l.Names {
			f.add(n)
		}
		f.count += max(0, l.Count-int64(len(l.Names)))
	}
	return reasons, by, s.Skipped - int64(len(s.Skips))
}
