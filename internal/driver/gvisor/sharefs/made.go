package sharefs

import (
	"sync"

	"github.com/belljar-sh/belljar/internal/workspace"
)

// Bounds of what is remembered of a sandbox's work; past them, directories count
// as the caller's.
const (
	maxMade = 1 << 20
	maxLost = 1 << 14
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
	full bool // there were more than can be remembered
}

func newMadeDirs() *madeDirs {
	return &madeDirs{dirs: make(map[key]bool), lost: make(map[spot]struct{})}
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
