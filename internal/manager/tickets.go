package manager

import (
	"crypto/rand"
	"os"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/daemon/fdpass"
	"github.com/belljar-sh/belljar/sandbox"
)

// tickets keeps the open files that callers have passed until a create takes
// them. The zero value is ready.
type tickets struct {
	mu   sync.Mutex
	open map[string]*held
}

type held struct {
	files []*os.File
	timer *time.Timer
}

// Bounds on files that wait for their create.
const (
	ticketLife = time.Minute
	maxTickets = 256
)

// AddFiles takes files over under a ticket for [sandbox.Mount].Handle, "" for
// a fresh one. They lapse after a minute. On an error they are closed.
func (m *Manager) AddFiles(name string, files []*os.File) (handles []string, err error) {
	if name == "" {
		name = rand.Text()
	}
	if err := m.tickets.add(name, files); err != nil {
		fdpass.Close(files)
		return nil, err
	}
	return fdpass.Handles(name, len(files)), nil
}

func (t *tickets) add(name string, files []*os.File) error {
	if _, _, err := fdpass.ParseHandle(name + ".0"); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[string]*held{}
	}
	if t.open[name] != nil {
		return sandbox.Errorf(sandbox.AlreadyExists, "the ticket is in use")
	}
	if len(t.open) >= maxTickets {
		return sandbox.Errorf(sandbox.Unavailable, "%d batches of files wait for their create", maxTickets).
			WithHint("try again in a minute")
	}
	h := &held{files: files}
	h.timer = time.AfterFunc(ticketLife, func() { t.drop(name, h) })
	t.open[name] = h
	return nil
}

// drop closes what nobody took in time.
func (t *tickets) drop(name string, h *held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[name] == h {
		delete(t.open, name)
		fdpass.Close(h.files)
	}
}

// take returns the files of mounts, in their order, which the caller closes.
// Each ticket is spent by it, whatever follows.
func (t *tickets) take(mounts []sandbox.Mount) (files []*os.File, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	spent := map[string]*held{}
	defer func() {
		for _, h := range spent {
			fdpass.Close(h.files)
		}
		if err != nil {
			fdpass.Close(files)
			files = nil
		}
	}()
	for _, mount := range mounts {
		name, i, err := fdpass.ParseHandle(mount.Handle)
		if err != nil {
			return files, err
		}
		if h := t.open[name]; h != nil {
			h.timer.Stop()
			delete(t.open, name)
			spent[name] = h
		}
		h := spent[name]
		if h == nil || i >= len(h.files) {
			return files, sandbox.Errorf(sandbox.NotFound, "no open file has this handle; it lapses after a minute and serves one create").
				WithField("handle", mount.Handle)
		}
		f, err := fdpass.Dup(h.files[i])
		if err != nil {
			return files, sandbox.Errorf(sandbox.ResourceExhausted, "the file of a volume cannot be held open: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

func (t *tickets) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, h := range t.open {
		h.timer.Stop()
		fdpass.Close(h.files)
		delete(t.open, name)
	}
}
