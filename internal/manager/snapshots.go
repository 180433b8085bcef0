package manager

import (
	"slices"
	"strings"
	"sync"

	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxSnapshots bounds the snapshots that are kept.
const maxSnapshots = 10000

// snap is one snapshot. Its ID and manifest do not change; the rest is guarded
// by its index.
type snap struct {
	id       sandbox.ID
	manifest *image.Manifest // nil while it is being taken
	names    []string
	problem  string // why it cannot be used
	users    int    // that restore from it
	removed  bool   // not listed any more, and gone with the last user
}

// snapIndex knows all snapshots by ID and name. It is safe for concurrent use.
type snapIndex struct {
	mu     sync.Mutex
	byID   map[sandbox.ID]*snap
	byName map[string]*snap
}

func newSnapIndex() *snapIndex {
	return &snapIndex{byID: map[sandbox.ID]*snap{}, byName: map[string]*snap{}}
}

// reserve enters a snapshot that is about to be taken, unless a name is taken.
func (x *snapIndex) reserve(s *snap) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.byID) >= maxSnapshots {
		return sandbox.Errorf(sandbox.ResourceExhausted, "there are %d snapshots already", maxSnapshots).WithHint("remove some with `belljar snapshot rm`")
	}
	if x.byID[s.id] != nil {
		return sandbox.Errorf(sandbox.AlreadyExists, "the snapshot is here already").WithField("snapshot", string(s.id))
	}
	for _, n := range s.names {
		if x.byName[n] != nil {
			return sandbox.Errorf(sandbox.AlreadyExists, "a snapshot has this name").WithField("name", n).
				WithHint("choose another name or tag, or remove that snapshot first")
		}
	}
	x.byID[s.id] = s
	for _, n := range s.names {
		x.byName[n] = s
	}
	return nil
}

// publish has a snapshot listed.
func (x *snapIndex) publish(s *snap, m *image.Manifest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.manifest = m
}

func (x *snapIndex) forget(s *snap) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(s)
}

// drop takes a snapshot and its names away; x.mu is held.
func (x *snapIndex) drop(s *snap) {
	delete(x.byID, s.id)
	for _, n := range s.names {
		if x.byName[n] == s {
			delete(x.byName, n)
		}
	}
}

func (x *snapIndex) view(s *snap) sandbox.Snapshot {
	x.mu.Lock()
	defer x.mu.Unlock()
	return s.view()
}

// view is the record that callers see; the index's lock is held.
func (s *snap) view() sandbox.Snapshot {
	out := sandbox.Snapshot{ID: s.id, Names: append([]string{}, s.names...), Problem: s.problem}
	if m := s.manifest; m != nil {
		out.Kind, out.Sandbox, out.Template, out.Boundary = m.Kind, m.Sandbox, m.Template.Name, m.Boundary
		out.CPUs, out.MemoryBytes, out.Dir, out.Build = m.Limits.CPUs, m.Limits.MemoryBytes, m.Dir, m.Build
		out.CreatedAt, out.SizeBytes = m.SavedAt, m.Bytes()
	}
	return out
}

// find returns the snapshot that ref means: an ID, or a name with or without a
// tag. x.mu is held.
func (x *snapIndex) find(ref string) (*snap, error) {
	s := x.byID[sandbox.ID(ref)]
	if s == nil {
		if name, err := sandbox.SnapshotName(ref); err == nil {
			s = x.byName[name]
		}
	}
	if s == nil || s.manifest == nil && s.problem == "" || s.removed {
		return nil, sandbox.Errorf(sandbox.NotFound, "no snapshot has this ID or name").WithField("snapshot", ref).
			WithHint("`belljar snapshot ls` lists them")
	}
	return s, nil
}

// recallSnapshots fills the index from the disk. What cannot be used is listed
// with the reason, and what a crash has left is removed.
func (m *Manager) recallSnapshots() error {
	store := m.o.Snapshots
	if store == nil {
		return nil
	}
	ids, err := store.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		s := &snap{id: id}
		if s.manifest, err = store.Manifest(id); err != nil {
			s.problem = sandbox.AsError(err).Message
		} else if s.names, err = store.Names(id); err != nil {
			s.problem = sandbox.AsError(err).Message
		} else {
			s.problem = m.foreign(s.manifest)
		}
		// A crash in the middle of a change of names may have left one twice.
		s.names = slices.DeleteFunc(s.names, func(n string) bool { return m.snaps.byName[n] != nil })
		if s.problem != "" {
			m.log.Warn("a snapshot cannot be used", "snapshot", id, "problem", s.problem)
		}
		if err := m.snaps.reserve(s); err != nil {
			return err
		}
	}
	for _, s := range []*image.Store{store, m.o.Forks} {
		if err := s.Sweep(func(id sandbox.ID) bool { return s == store && m.snaps.byID[id] != nil }); err != nil {
			m.log.Warn("leftovers of images were not removed", "err", err)
		}
	}
	return nil
}

// foreign tells why this build cannot start a sandbox from an image, "" if it
// can.
func (m *Manager) foreign(f *image.Manifest) string {
	if f.Kind == sandbox.KindMemory && f.Build != m.o.Build {
		return "its memory was saved by another build, " + f.Build
	}
	return ""
}

// Snapshots lists all snapshots, oldest first.
func (m *Manager) Snapshots() []sandbox.Snapshot {
	x := m.snaps
	x.mu.Lock()
	defer x.mu.Unlock()
	out := []sandbox.Snapshot{}
	for _, s := range x.byID {
		if !s.removed && (s.manifest != nil || s.problem != "") {
			out = append(out, s.view())
		}
	}
	slices.SortFunc(out, func(a, b sandbox.Snapshot) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return out
}

// GetSnapshot returns one snapshot by ID or name.
func (m *Manager) GetSnapshot(ref string) (sandbox.Snapshot, error) {
	x := m.snaps
	x.mu.Lock()
	defer x.mu.Unlock()
	s, err := x.find(ref)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	return s.view(), nil
}

// RemoveSnapshot removes a snapshot with all its names. Sandboxes that have
// started from it are not touched; those that are about to still do.
func (m *Manager) RemoveSnapshot(ref string) (sandbox.Snapshot, error) {
	x := m.snaps
	x.mu.Lock()
	s, err := x.find(ref)
	if err != nil {
		x.mu.Unlock()
		return sandbox.Snapshot{}, err
	}
	out := s.view()
	s.removed = true
	x.drop(s)
	last := s.users == 0
	x.mu.Unlock()
	if !last {
		return out, nil
	}
	return out, m.discard(s)
}

// discard removes a snapshot from the disk. One that could not be removed is
// listed again.
func (m *Manager) discard(s *snap) error {
	m.crash(CrashSnapshotRemoving)
	err := m.o.Snapshots.Remove(s.id)
	if err == nil || !m.o.Snapshots.Has(s.id) {
		return err
	}
	m.snaps.mu.Lock()
	s.removed = false
	m.snaps.mu.Unlock()
	if rerr := m.snaps.reserve(s); rerr != nil {
		m.log.Error("a snapshot was not removed", "snapshot", s.id, "err", rerr)
	}
	return err
}

// TagSnapshot gives a snapshot one more name. With move the name may be taken
// from another.
func (m *Manager) TagSnapshot(ref, name string, move bool) (sandbox.Snapshot, error) {
	name, err := sandbox.SnapshotName(name)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	x := m.snaps
	x.mu.Lock()
	defer x.mu.Unlock()
	s, err := x.find(ref)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	other := x.byName[name]
	switch {
	case other == s:
		return s.view(), nil
	case other != nil && !move:
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.AlreadyExists, "another snapshot has this name").WithField("name", name).
			WithHint("have it moved with --force, or choose another")
	case len(s.names) >= maxNames:
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.ResourceExhausted, "a snapshot has at most %d names", maxNames).WithField("name", name)
	}
	// First the new one: a crash in between leaves two, of which one is dropped
	// at the next start, and never none.
	if err := m.rename(s, append(slices.Clone(s.names), name)); err != nil {
		return sandbox.Snapshot{}, err
	}
	if other != nil {
		if err := m.rename(other, without(other.names, name)); err != nil {
			return sandbox.Snapshot{}, err
		}
	}
	x.byName[name] = s
	return s.view(), nil
}

const maxNames = 64

// UntagSnapshot takes a name away from the snapshot that has it. One that has
// none left keeps its ID.
func (m *Manager) UntagSnapshot(ref, name string) (sandbox.Snapshot, error) {
	full, err := sandbox.SnapshotName(name)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	x := m.snaps
	x.mu.Lock()
	defer x.mu.Unlock()
	s, err := x.find(ref)
	if err != nil {
		return sandbox.Snapshot{}, err
	}
	if x.byName[full] != s {
		return sandbox.Snapshot{}, sandbox.Errorf(sandbox.NotFound, "the snapshot does not have this name").WithField("name", full)
	}
	if err := m.rename(s, without(s.names, full)); err != nil {
		return sandbox.Snapshot{}, err
	}
	delete(x.byName, full)
	return s.view(), nil
}

// rename writes what a snapshot is called; the index's lock is held.
func (m *Manager) rename(s *snap, names []string) error {
	if err := m.o.Snapshots.SetNames(s.id, names); err != nil {
		return err
	}
	s.names = names
	return nil
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

// borrow returns a snapshot that stays until it is returned, once every file of
// it has been checked: with full every byte, else all but the pages.
func (m *Manager) borrow(ref string, full bool) (*snap, error) {
	x := m.snaps
	x.mu.Lock()
	s, err := x.find(ref)
	if err == nil && s.problem != "" {
		err = sandbox.Errorf(sandbox.Conflict, "the snapshot cannot be used: %s", s.problem).WithField("snapshot", ref).
			WithHint("`belljar snapshot ls` tells of each; put back what has changed, install the build that saved it, or take a new one")
	}
	if err != nil {
		x.mu.Unlock()
		return nil, err
	}
	s.users++
	x.mu.Unlock()
	check := m.o.Snapshots.Open
	if full {
		check = m.o.Snapshots.Verify
	}
	if _, err := check(s.id); err != nil {
		m.giveSnap(s)
		return nil, err
	}
	return s, nil
}

// giveSnap ends a borrow.
func (m *Manager) giveSnap(s *snap) {
	m.snaps.mu.Lock()
	s.users--
	last := s.removed && s.users == 0
	m.snaps.mu.Unlock()
	if !last {
		return
	}
	if err := m.discard(s); err != nil {
		m.log.Error("a snapshot was not removed", "snapshot", s.id, "err", err)
	}
}
