package sharefs

import (
	"path"
	"sync"
)

// Bounds of what is remembered of a sandbox's work; past them, directories count
// as the caller's.
const (
	maxMade = 1 << 20
	maxLost = 1 << 14
)

// madeDirs remembers which directories this sandbox made, and at which paths
// there were others that it removed or renamed: what it makes there later takes
// the place of something that the caller knew. It is lost with the process, so
// that after a restore all directories count as the caller's.
type madeDirs struct {
	mu   sync.RWMutex
	dirs map[key]struct{}
	lost map[string]struct{}
	full bool // there were more lost paths than can be remembered
}

func (m *madeDirs) has(k key) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ok := m.dirs[k]
	return ok
}

func (m *madeDirs) add(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dirs == nil {
		m.dirs = make(map[key]struct{})
	}
	if len(m.dirs) < maxMade {
		m.dirs[k] = struct{}{}
	}
}

func (m *madeDirs) remove(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.dirs, k)
}

// lose notes that a directory of the caller is no longer at p.
func (m *madeDirs) lose(p string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost == nil {
		m.lost = make(map[string]struct{})
	}
	if len(m.lost) >= maxLost {
		m.full = true
		return
	}
	m.lost[p] = struct{}{}
}

// takesPlace tells whether a directory of the caller was at p, or above it.
func (m *madeDirs) takesPlace(p string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.full {
		return true
	}
	if len(m.lost) == 0 {
		return false
	}
	for ; len(p) > 1; p = path.Dir(p) {
		if _, ok := m.lost[p]; ok {
			return true
		}
	}
	return false
}
