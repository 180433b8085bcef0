package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/belljar-sh/belljar/internal/diskuse"
	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// What stays free unless a quota says otherwise: a gigabyte, of a small disk a
// part.
const (
	defaultFree = 1 << 30
	freePart    = 20
)

// quotaVersion is that of the file's format.
const quotaVersion = 1

// quotaFile is what the file holds. Nil: nobody has set it.
type quotaFile struct {
	Version int    `json:"version"`
	Kept    *int64 `json:"kept_bytes,omitempty"`
	Free    *int64 `json:"free_bytes,omitempty"`
}

// quotas bound what is saved on disk.
type quotas struct {
	mu       sync.Mutex
	set      quotaFile
	reserved int64 // that what is under way might write
}

func (m *Manager) loadQuota() error {
	m.quotas.set = quotaFile{Version: quotaVersion}
	if m.o.QuotaFile == "" {
		return nil
	}
	b, err := os.ReadFile(m.o.QuotaFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var q quotaFile
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err = d.Decode(&q)
	}
	if err == nil && (q.Version != quotaVersion || q.Kept != nil && *q.Kept < 0 || q.Free != nil && *q.Free < 0) {
		err = errors.New("it was written by another version")
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "the quota cannot be read: %w", err).WithField("file", m.o.QuotaFile).
			WithHint("remove the file to have none")
	}
	m.quotas.set = q
	return nil
}

// Quota returns the bounds that hold.
func (m *Manager) Quota() sandbox.DiskQuota {
	m.quotas.mu.Lock()
	defer m.quotas.mu.Unlock()
	return m.quotaNow()
}

// quotaNow is Quota with the lock held.
func (m *Manager) quotaNow() (q sandbox.DiskQuota) {
	if m.quotas.set.Kept != nil {
		q.KeptBytes = *m.quotas.set.Kept
	}
	if m.quotas.set.Free != nil {
		q.FreeBytes = *m.quotas.set.Free
	} else if dir := m.diskDir(); dir != "" {
		size, _, err := diskuse.Disk(dir)
		if err != nil {
			size = defaultFree
		}
		q.FreeBytes = min(defaultFree, size/freePart)
	}
	return q
}

// SetQuota sets what paused sandboxes and snapshots may take, and what stays free;
// nil leaves a bound as it is. What is there already stays, even beyond the bound.
func (m *Manager) SetQuota(kept, free *int64) (sandbox.DiskQuota, error) {
	if m.o.QuotaFile == "" || m.images == nil {
		return sandbox.DiskQuota{}, sandbox.Errorf(sandbox.Unsupported, "quotas are kept by a daemon only")
	}
	if err := m.checkQuota(kept, free); err != nil {
		return sandbox.DiskQuota{}, err
	}
	m.quotas.mu.Lock()
	defer m.quotas.mu.Unlock()
	now := m.quotas.set
	if kept != nil {
		now.Kept = kept
	}
	if free != nil {
		now.Free = free
	}
	b, err := json.Marshal(now)
	if err == nil {
		err = writeAside(m.o.QuotaFile, append(b, '\n'))
	}
	if err != nil {
		return sandbox.DiskQuota{}, sandbox.Errorf(sandbox.Unavailable, "the quota cannot be written: %w", err).WithField("file", m.o.QuotaFile).
			WithHint("is the disk full?")
	}
	m.quotas.set = now
	return m.quotaNow(), nil
}

func (m *Manager) checkQuota(kept, free *int64) error {
	for name, n := range map[string]*int64{"kept_bytes": kept, "free_bytes": free} {
		if n != nil && *n < 0 {
			return sandbox.Errorf(sandbox.Invalid, "a number of bytes is not negative").WithField(name, strconv.FormatInt(*n, 10))
		}
	}
	size, _, err := diskuse.Disk(m.diskDir())
	if err != nil {
		return diskError(err)
	}
	if free != nil && *free >= size {
		return sandbox.Errorf(sandbox.Invalid, "the whole disk has %d bytes", size).WithField("free_bytes", strconv.FormatInt(*free, 10)).
			WithHint("leave less free: nothing could be saved")
	}
	return nil
}

// room returns the leave to save what a running sandbox holds, before anything of
// that is begun. Kept tells that the image stays, and counts towards the quota.
func (m *Manager) room(ctx context.Context, e *entry, kind sandbox.SnapshotKind, kept bool) (release func(), err error) {
	e.mu.Lock()
	k := e.keeper
	e.mu.Unlock()
	if k == nil {
		return nil, notRunning(e.snapshot())
	}
	ask, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := k.Stats(ask, e.id)
	if err != nil {
		return nil, err
	}
	need := st.DiskBytes
	if kind != sandbox.KindFiles {
		need += st.MemoryBytes
	}
	return m.roomFor(ctx, need, kept)
}

// roomFor returns the leave to write so many bytes.
func (m *Manager) roomFor(ctx context.Context, need int64, kept bool) (release func(), err error) {
	m.quotas.mu.Lock()
	defer m.quotas.mu.Unlock()
	q := m.quotaNow()
	_, free, err := diskuse.Disk(m.diskDir())
	if err != nil {
		return nil, diskError(err)
	}
	if free-m.quotas.reserved-need < q.FreeBytes {
		return nil, sandbox.Errorf(sandbox.ResourceExhausted, "this may take %d MiB, the disk has %d MiB left, and %d MiB stay free",
			need>>20, max(free-m.quotas.reserved, 0)>>20, q.FreeBytes>>20).
			WithField("free_bytes", strconv.FormatInt(q.FreeBytes, 10)).
			WithHint("`belljar system df` tells what takes disk, `belljar system prune` makes room, `belljar system quota --free` leaves less")
	}
	if kept && q.KeptBytes > 0 {
		used, err := m.keptBytes(ctx)
		if err != nil {
			return nil, err
		}
		if used+m.quotas.reserved+need > q.KeptBytes {
			return nil, sandbox.Errorf(sandbox.ResourceExhausted, "this may take %d MiB, and paused sandboxes and snapshots have %d of the %d MiB that they may take",
				need>>20, (used+m.quotas.reserved)>>20, q.KeptBytes>>20).
				WithField("kept_bytes", strconv.FormatInt(q.KeptBytes, 10)).
				WithHint("remove some (`belljar snapshot rm`, `belljar kill`), or raise the bound with `belljar system quota --kept`")
		}
	}
	m.quotas.reserved += need
	return sync.OnceFunc(func() {
		m.quotas.mu.Lock()
		defer m.quotas.mu.Unlock()
		m.quotas.reserved -= need
	}), nil
}

// keptBytes is what paused sandboxes and snapshots take, files that they share
// counted once.
func (m *Manager) keptBytes(ctx context.Context) (n int64, err error) {
	seen := diskuse.Set{}
	for _, s := range []*image.Store{m.images, m.o.Snapshots} {
		if s == nil {
			continue
		}
		files, err := diskuse.Walk(ctx, s.Dir())
		if err != nil {
			return 0, diskError(err)
		}
		fresh, _ := seen.Add(files)
		n += fresh
	}
	return n, nil
}

// writeAside writes a file aside, has it on disk and gives it its name.
func writeAside(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	return filesum.SyncPath(filepath.Dir(path))
}
