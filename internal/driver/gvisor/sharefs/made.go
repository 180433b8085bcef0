package sharefs

import (
	"strings"
	"sync"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// Bounds of what is remembered of a sandbox's work; past them, directories count
// as the caller's.
const (
	maxMade = 1 << 20
	maxLost = 1 << 16
)

// spot is a name in a directory, whichever way that was reached.
type spot struct {
	dir  key
	name string // folded
}

// madeDirs remembers which directories this sandbox made, and where there were
// others that it removed or renamed: what it makes there later takes the place
// of something that the caller knew, and so does everything below that. It is
// shared by all shares of a sandbox, which may show the same directory, and lost
// with the process, so that after a restore all directories count as the
// caller's.
type madeDirs struct {
	mu   sync.RWMutex
	dirs map[key]bool // made by the sandbox: true; in the place of another: false
	lost map[spot]struct{}
	// paths are where the caller's directories were, folded: what is made above
	// them anew is another directory, and has other spots.
	paths map[string]struct{}
	full  bool // there were more than can be remembered
}

func newMadeDirs() *madeDirs {
	return &madeDirs{dirs: make(map[key]bool), lost: make(map[spot]struct{}), paths: make(map[string]struct{})}
}

// has tells whether the sandbox made a directory, in no other's place.
func (m *madeDirs) has(k key) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.dirs[k]
}

// add notes a new directory, which takes the place of another or not.
func (m *madeDirs) add(k key, takesPlace bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.dirs[k]; !there && len(m.dirs) >= maxMade {
		m.full = true
		return
	}
	m.dirs[k] = !takesPlace
}

// remove forgets a directory that is gone.
func (m *madeDirs) remove(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.dirs, k)
}

// lose notes that a directory that was the caller's is no longer where it was.
func (m *madeDirs) lose(dir key, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lost) >= maxLost {
		m.full = true
		return
	}
	m.lost[spot{dir, workspace.Fold(name)}] = struct{}{}
}

// losePath notes that a directory of the caller's is no longer at a path.
func (m *madeDirs) losePath(p string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.paths) >= maxLost {
		m.full = true
		return
	}
	m.paths[foldPath(p)] = struct{}{}
}

// linkTakesPlace tells whether a symbolic link would stand where a directory of
// the caller's was. Below such a place links are free: a dependency that is
// installed anew has many.
func (m *madeDirs) linkTakesPlace(dir key, name, p string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if made, known := m.dirs[dir]; known && made {
		return false
	}
	if m.full {
		return true
	}
	if _, lost := m.lost[spot{dir, workspace.Fold(name)}]; lost {
		return true
	}
	_, lost := m.paths[foldPath(p)]
	return lost
}

// foldPath folds each name of a path.
func foldPath(p string) string {
	names := strings.Split(p, "/")
	for i, name := range names {
		names[i] = workspace.Fold(name)
	}
	return strings.Join(names, "/")
}

// takesPlace tells whether a new entry of a directory stands where one of the
// caller's was, or below such a place.
func (m *madeDirs) takesPlace(dir key, name string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if made, known := m.dirs[dir]; known {
		return !made
	}
	if m.full {
		return true
	}
	_, lost := m.lost[spot{dir, workspace.Fold(name)}]
	return lost
}
