package manager

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/belljar-sh/belljar/internal/diskuse"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// onDisk is one thing on disk, and how it is removed.
type onDisk struct {
	sandbox.DiskItem
	files  []diskuse.File
	remove func(ctx context.Context) error // nil: it is not
}

// diskKinds is the order in which things are told. What two have in common counts
// for the first.
var diskKinds = []sandbox.DiskKind{
	sandbox.DiskPaused, sandbox.DiskSnapshot, sandbox.DiskPrepared, sandbox.DiskFork, sandbox.DiskLogs, sandbox.DiskJournal,
}

// leftOver is the reason of what a crash has left.
const leftOver = "left by something that did not come to its end"

// DiskUse tells what takes disk. Templates are not among it: they are the
// caller's.
func (m *Manager) DiskUse(ctx context.Context) (sandbox.DiskUse, error) {
	things, err := m.things(ctx)
	if err != nil {
		return sandbox.DiskUse{}, err
	}
	tally(things, func(*onDisk) bool { return true })
	out := sandbox.DiskUse{Items: []sandbox.DiskItem{}, TemplatesInUse: m.templatesInUse(), Quota: m.Quota()}
	for _, t := range things {
		out.Items = append(out.Items, t.DiskItem)
		if t.Kind == sandbox.DiskPaused || t.Kind == sandbox.DiskSnapshot {
			out.KeptBytes += t.SizeBytes
		}
	}
	if dir := m.diskDir(); dir != "" {
		if _, out.FreeBytes, err = diskuse.Disk(dir); err != nil {
			return sandbox.DiskUse{}, diskError(err)
		}
	}
	return out, nil
}

// Prune removes what nobody needs: records and logs of dead sandboxes, leftovers,
// and images that no template would make now; with all also snapshots without a
// name. With dry nothing is removed. One thing that cannot go keeps no other.
func (m *Manager) Prune(ctx context.Context, all, dry bool) (sandbox.Pruned, error) {
	out := sandbox.Pruned{Items: []sandbox.DiskItem{}}
	things, err := m.things(ctx)
	if err != nil {
		return out, err
	}
	goes := func(t *onDisk) bool { return all || !t.All }
	tally(things, goes)
	for _, t := range things {
		if t.remove == nil || !goes(t) {
			continue
		}
		if !dry {
			if ctx.Err() != nil {
				return out, canceled(ctx) // what has gone has gone
			}
			if err := t.remove(ctx); err != nil {
				m.log.Warn("something was not pruned", "kind", t.Kind, "id", t.ID, "err", err)
				out.Problems = append(out.Problems, string(t.Kind)+" "+t.ID+": "+sandbox.AsError(err).Error())
				continue
			}
		}
		out.Items = append(out.Items, t.DiskItem)
		out.ReclaimedBytes += t.ReclaimableBytes
	}
	return out, nil
}

// tally counts each file once, and what would be free if all that goes were gone.
func tally(things []*onDisk, goes func(*onDisk) bool) {
	seen, gone := diskuse.Set{}, diskuse.Set{}
	for _, t := range things {
		t.SizeBytes, t.SharedBytes = seen.Add(t.files)
		if t.remove != nil && goes(t) {
			gone.Add(t.files)
		}
	}
	for _, t := range things {
		if t.remove != nil && goes(t) {
			t.ReclaimableBytes = gone.Freed(t.files)
		}
	}
}

// things returns all that lies on disk.
func (m *Manager) things(ctx context.Context) ([]*onDisk, error) {
	var out []*onDisk
	for _, list := range []func(context.Context) ([]*onDisk, error){m.pausedThings, m.snapshotThings, m.preparedThings, m.forkThings, m.logThings, m.journalThings} {
		some, err := list(ctx)
		if err != nil {
			return nil, diskError(err)
		}
		out = append(out, some...)
	}
	slices.SortStableFunc(out, func(a, b *onDisk) int {
		return cmp.Or(slices.Index(diskKinds, a.Kind)-slices.Index(diskKinds, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func diskError(err error) error {
	if sandbox.KindOf(err) != sandbox.Internal {
		return err
	}
	return sandbox.Errorf(sandbox.Internal, "the disk cannot be looked at: %w", err)
}

// imageThings returns what a store has. describe fills in the rest of an item, and
// tells how it is removed.
func imageThings(ctx context.Context, s *image.Store, kind sandbox.DiskKind, describe func(e image.Entry, t *onDisk)) ([]*onDisk, error) {
	if s == nil {
		return nil, nil
	}
	entries, err := s.Entries()
	if err != nil {
		return nil, err
	}
	var out []*onDisk
	for _, e := range entries {
		t := &onDisk{DiskItem: sandbox.DiskItem{Kind: kind, ID: string(e.ID)}}
		if t.files, err = diskuse.Walk(ctx, e.Path); err != nil {
			return nil, err
		}
		describe(e, t)
		out = append(out, t)
	}
	return out, nil
}

func (m *Manager) entry(id sandbox.ID) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

// pausedThings are images of paused sandboxes. Those of the living stay, whatever
// they are at: IDs are not used again, so nobody begins an image for another.
func (m *Manager) pausedThings(ctx context.Context) ([]*onDisk, error) {
	return imageThings(ctx, m.images, sandbox.DiskPaused, func(e image.Entry, t *onDisk) {
		of := m.entry(e.ID)
		if of != nil {
			sb := of.snapshot()
			if t.Name = sb.Name; sb.State != sandbox.Dead {
				return
			}
		}
		t.Reason, t.remove = leftOver, func(context.Context) error { return m.images.Remove(e.ID) }
	})
}

// snapshotThings are snapshots. A complete one that is not listed is being removed,
// or will be by the last who starts from it.
func (m *Manager) snapshotThings(ctx context.Context) ([]*onDisk, error) {
	return imageThings(ctx, m.o.Snapshots, sandbox.DiskSnapshot, func(e image.Entry, t *onDisk) {
		m.snaps.mu.Lock()
		defer m.snaps.mu.Unlock()
		s := m.snaps.byID[e.ID]
		switch {
		case s == nil && e.Draft:
			t.Reason, t.remove = leftOver, func(context.Context) error { return m.o.Snapshots.RemoveDraft(e.ID) }
		case s == nil || e.Draft || s.manifest == nil && s.problem == "":
		case len(s.names) == 0:
			t.Reason, t.All = "it has no name", true
			t.remove = func(context.Context) error { return m.removeUnnamed(e.ID) }
		default:
			t.Name = strings.Join(s.names, ",")
		}
	})
}

// removeUnnamed removes a snapshot unless it has got a name meanwhile.
func (m *Manager) removeUnnamed(id sandbox.ID) error {
	s, err := m.GetSnapshot(string(id))
	if sandbox.KindOf(err) == sandbox.NotFound {
		return nil
	}
	if err == nil && len(s.Names) > 0 {
		err = sandbox.Errorf(sandbox.Conflict, "the snapshot has got a name").WithField("snapshot", string(id))
	}
	if err == nil {
		_, err = m.RemoveSnapshot(string(id))
	}
	return err
}

func (m *Manager) preparedThings(ctx context.Context) ([]*onDisk, error) {
	return imageThings(ctx, m.o.Prepared, sandbox.DiskPrepared, func(e image.Entry, t *onDisk) {
		m.prep.mu.Lock()
		making := m.prep.now[e.ID] != nil
		m.prep.mu.Unlock()
		switch {
		case making:
			return
		case e.Draft:
			t.Reason, t.remove = leftOver, func(context.Context) error { return m.o.Prepared.RemoveDraft(e.ID) }
			return
		}
		manifest, err := m.o.Prepared.Manifest(e.ID)
		if err == nil {
			t.Name = manifest.Template.Name
		}
		if err != nil || !m.wouldPrepare(ctx, manifest) {
			t.Reason, t.remove = "no template would make it now", func(context.Context) error { return m.o.Prepared.Remove(e.ID) }
		}
	})
}

func (m *Manager) forkThings(ctx context.Context) ([]*onDisk, error) {
	return imageThings(ctx, m.o.Forks, sandbox.DiskFork, func(e image.Entry, t *onDisk) {
		m.mu.Lock()
		making := m.forking[e.ID]
		m.mu.Unlock()
		if !making {
			t.Reason, t.remove = leftOver, func(context.Context) error { return m.o.Forks.Remove(e.ID) }
		}
	})
}

// logThings are the logs of sandboxes, those of the dead with their records.
func (m *Manager) logThings(ctx context.Context) ([]*onDisk, error) {
	if m.o.LogDir == "" {
		return nil, nil
	}
	var out []*onDisk
	known := map[string]bool{}
	add := func(id sandbox.ID) (*onDisk, error) {
		files, err := diskuse.Walk(ctx, filepath.Join(m.o.LogDir, string(id)))
		t := &onDisk{DiskItem: sandbox.DiskItem{Kind: sandbox.DiskLogs, ID: string(id)}, files: files}
		out = append(out, t)
		return t, err
	}
	for _, e := range m.entries() {
		sb := e.snapshot()
		known[string(e.id)] = true
		t, err := add(e.id)
		if err != nil {
			return nil, err
		}
		if t.Name = sb.Name; sb.State == sandbox.Dead {
			t.Reason, t.remove = "its sandbox is dead", func(ctx context.Context) error { return m.forget(ctx, e) }
		} else if len(t.files) == 0 {
			out = out[:len(out)-1]
		}
	}
	dirs, err := os.ReadDir(m.o.LogDir)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		id, err := sandbox.ParseID(d.Name())
		if err != nil || known[d.Name()] || m.entry(id) != nil {
			continue
		}
		t, err := add(id)
		if err != nil {
			return nil, err
		}
		t.Reason, t.remove = leftOver, func(context.Context) error { m.removeLog(id); return nil }
	}
	return out, nil
}

func (m *Manager) journalThings(ctx context.Context) ([]*onDisk, error) {
	if m.o.Database == "" {
		return nil, nil
	}
	t := &onDisk{DiskItem: sandbox.DiskItem{Kind: sandbox.DiskJournal, Name: filepath.Base(m.o.Database)}}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		files, err := diskuse.Walk(ctx, m.o.Database+suffix)
		if err != nil {
			return nil, err
		}
		t.files = append(t.files, files...)
	}
	return []*onDisk{t}, nil
}

// templatesInUse returns the templates that something here needs, sorted.
func (m *Manager) templatesInUse() []string {
	in := map[string]bool{}
	for _, sb := range m.List(false) {
		in[sb.Template] = true
	}
	for _, s := range m.Snapshots() {
		in[s.Template] = s.Kind != sandbox.KindDirectory || in[s.Template]
	}
	for _, p := range m.Pools() {
		in[p.Template] = true
	}
	out := []string{}
	for name, used := range in {
		if used && name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// diskDir is a directory on the disk that is written to; empty: there is none.
func (m *Manager) diskDir() string {
	if m.images == nil {
		return m.o.LogDir
	}
	return m.images.Dir()
}
