package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// MaxForks bounds the copies that one fork makes.
const MaxForks = 64

// Fork makes count copies of a sandbox as it is now: memory, processes and files
// are those of the source, identity and token their own, and from then on each
// goes its own way. The source goes on; how long it stood still is returned. With
// a name the copy has it, or several NAME-1 and so on. It returns when all
// copies have answered; when one fails, or ctx ends before, none is left.
func (m *Manager) Fork(ctx context.Context, ref string, count int, name string) ([]sandbox.Sandbox, time.Duration, error) {
	if m.o.Forks == nil {
		return nil, 0, errNoSnapshots()
	}
	if count < 1 || count > MaxForks {
		return nil, 0, sandbox.Errorf(sandbox.Invalid, "1 to %d copies can be made at once", MaxForks).WithField("count", fmt.Sprint(count))
	}
	e, err := m.find(ref)
	if err != nil {
		return nil, 0, err
	}
	names, err := m.forkNames(name, count)
	if err != nil {
		return nil, 0, err
	}
	id := sandbox.NewID()
	m.setForking(id, true)
	defer func() {
		if err := m.o.Forks.Remove(id); err != nil {
			m.log.Warn("the image of a fork was not removed", "sandbox", e.id, "err", err)
		}
		m.setForking(id, false)
	}()
	from, stopped, err := m.forkImage(ctx, e, id)
	if err != nil {
		return nil, 0, err
	}
	m.crash(CrashForkSaved)
	out, err := m.forks(ctx, from, names)
	return out, stopped, err
}

// setForking notes that the image of a fork is at work, so that nobody takes it for
// a leftover.
func (m *Manager) setForking(id sandbox.ID, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if is {
		m.forking[id] = true
	} else {
		delete(m.forking, id)
	}
}

// forkNames names the copies, and refuses what cannot be before anything is done.
func (m *Manager) forkNames(name string, count int) ([]string, error) {
	names := make([]string, count)
	if name == "" {
		return names, nil
	}
	for i := range names {
		names[i] = name
		if count > 1 {
			names[i] = fmt.Sprintf("%s-%d", name, i+1)
		}
		if err := sandbox.CheckName("name", names[i]); err != nil {
			return nil, err
		}
		m.mu.Lock()
		taken := m.byName[names[i]] != nil
		m.mu.Unlock()
		if taken {
			return nil, sandbox.Errorf(sandbox.AlreadyExists, "a sandbox has this name").WithField("name", names[i]).
				WithHint("kill it first, or choose another name")
		}
	}
	return names, nil
}

// forkImage has the image written that the copies are made from.
func (m *Manager) forkImage(ctx context.Context, e *entry, id sandbox.ID) (*source, time.Duration, error) {
	f := &forking{m: m, e: e, id: id}
	if err := m.saving(ctx, e, f.live, f.paused); err != nil {
		return nil, 0, err
	}
	return f.from, f.stopped, nil
}

// forking is the image of one fork on its way.
type forking struct {
	m       *Manager
	e       *entry
	id      sandbox.ID
	from    *source
	stopped time.Duration
}

func (f *forking) live(ctx context.Context) error {
	release, err := f.m.room(ctx, f.e, sandbox.KindMemory, false)
	if err != nil {
		return err
	}
	defer release()
	dir, err := f.m.o.Forks.Begin(f.id)
	if err != nil {
		return err
	}
	r := f.e.record()
	manifest, stopped, err := f.m.saveLive(ctx, f.e, dir, "a fork is being made", sandbox.KindMemory)
	f.stopped, f.from = stopped, &source{dir: dir, manifest: manifest, fork: &r}
	return err
}

func (f *forking) paused(context.Context) error {
	manifest, err := f.m.images.Open(f.e.id)
	if err != nil {
		return err
	}
	r := f.e.record()
	f.from = &source{dir: f.m.o.Forks.Draft(f.id), manifest: manifest, fork: &r}
	return f.m.o.Forks.Adopt(f.id, f.m.images.Path(f.e.id), manifest)
}

// record returns a copy of the whole record.
func (e *entry) record() Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec
}

// forks makes the copies, as many at once as creates may be at work.
func (m *Manager) forks(ctx context.Context, from *source, names []string) ([]sandbox.Sandbox, error) {
	if err := m.compatible(ctx, from.manifest); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make([]sandbox.Sandbox, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			out[i], errs[i] = m.forkOne(ctx, from, name)
			if errs[i] != nil {
				cancel() // none of the others would stay
			}
		})
	}
	wg.Wait()
	err := firstCause(errs)
	if err == nil {
		return out, nil
	}
	for i, sb := range out {
		if errs[i] != nil {
			continue
		}
		if e, ferr := m.find(string(sb.ID)); ferr == nil {
			if _, kerr := m.kill(context.WithoutCancel(ctx), e, sandbox.EndFailed); kerr != nil {
				m.log.Error("a copy of a fork that failed is not gone yet", "sandbox", sb.ID, "err", kerr)
			}
		}
	}
	return nil, err
}

// firstCause prefers the error that made others be given up.
func firstCause(errs []error) error {
	var given error
	for _, err := range errs {
		switch {
		case err == nil:
		case sandbox.KindOf(err) != sandbox.Canceled && !errors.Is(err, context.Canceled):
			return err
		default:
			given = err
		}
	}
	return given
}

func (m *Manager) forkOne(ctx context.Context, from *source, name string) (sandbox.Sandbox, error) {
	r := from.fork
	c := &create{m: m, from: from, began: time.Now(), spec: sandbox.Spec{Name: name, Timeout: r.Timeout}}
	if err := from.fits(&c.spec); err != nil {
		return sandbox.Sandbox{}, err
	}
	release, err := m.admit(ctx)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	defer release()
	c.admitted = true
	made, err := c.run(ctx)
	return made.Sandbox, err
}
