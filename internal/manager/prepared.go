package manager

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// A template with a start command is started once: the command is run in a
// sandbox of its own and, once the ready command succeeds, that sandbox's memory
// is the image that every sandbox of the template starts from. There is one image
// for each size of sandbox, made when the first of that size is asked for.

// The label of the sandbox in which a start command runs, and the process.
const (
	preparingLabel = "belljar.preparing"
	startProcess   = "start"
)

// How long a template may take to become ready, and how often it is asked.
const (
	readyTime  = 5 * time.Minute
	readyEvery = 200 * time.Millisecond
	readyTries = 2000
)

// preparations are the images of templates that are being made: one at a time of
// each.
type preparations struct {
	mu  sync.Mutex
	now map[sandbox.ID]*preparation
}

type preparation struct {
	done chan struct{}
	err  error // once done
}

// prepared has a create of a template with a start command start from the image
// of that.
func (c *create) prepared(ctx context.Context) error {
	m := c.m
	if c.preparing || c.template() == sandbox.DefaultTemplate {
		return nil
	}
	t, err := m.findTemplate(ctx, c.template())
	if err != nil || t.Start == "" {
		return err
	}
	if m.o.Prepared == nil {
		return sandbox.Errorf(sandbox.Unsupported, "the template has a start command, so its sandboxes are the daemon's").
			WithField("template", t.Name).WithHint("make it with `belljar create` or `belljar run -d`")
	}
	if len(c.spec.Mounts) > 0 {
		return sandbox.Errorf(sandbox.Unsupported, "sandboxes of a template with a start command start from memory, which has no mounts").
			WithField("volume", c.spec.Mounts[0].Target).WithHint("carry files with `belljar cp`")
	}
	id, manifest, err := m.preparedImage(ctx, t, c.spec)
	if err != nil {
		return err
	}
	c.from = &source{dir: m.o.Prepared.Path(id), manifest: manifest, prepared: id, release: func() {}}
	return c.from.fits(&c.spec)
}

// findTemplate returns what is known of a template; the zero value of one that
// is not there, which whoever resolves it says.
func (m *Manager) findTemplate(ctx context.Context, name string) (sandbox.Template, error) {
	list, err := m.o.Templates.List(ctx)
	if err != nil {
		return sandbox.Template{}, err
	}
	for _, t := range list {
		if t.Name == name {
			return t, nil
		}
	}
	return sandbox.Template{Name: name}, nil
}

// preparedID names the image of a template for sandboxes of one size: whatever
// it depends on makes another name of it.
func (m *Manager) preparedID(t sandbox.Template, spec sandbox.Spec) (sandbox.ID, error) {
	is, err := choose(spec.Boundary, spec.AllowWeaker, m.o.Boundaries)
	if err != nil {
		return "", err
	}
	return m.imageOf(t, is.Effective, spec.Limits.Merge(m.o.Defaults), explicit(spec.Limits))
}

func (m *Manager) imageOf(t sandbox.Template, b sandbox.Boundary, l sandbox.Limits, e driver.Explicit) (sandbox.ID, error) {
	l.Processes, l.OutputBytes, e.Processes = 0, 0, false // held by the guest, told by hello
	text, err := json.Marshal([]any{m.o.Build, b, t.Name, t.Kind, t.Digest, t.CreatedAt.UTC(), t.Start, t.Ready, l, e})
	if err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "a template cannot be named: %w", err).WithField("template", t.Name)
	}
	return sandbox.HashID(sha256.Sum256(text)), nil
}

// preparedImage returns the image of a template, and has it made when there is
// none: of several callers one makes it and all wait.
func (m *Manager) preparedImage(ctx context.Context, t sandbox.Template, spec sandbox.Spec) (sandbox.ID, *image.Manifest, error) {
	id, err := m.preparedID(t, spec)
	if err != nil {
		return "", nil, err
	}
	for {
		manifest, err := m.preparedNow(ctx, id)
		if err != nil || manifest != nil {
			return id, manifest, err
		}
		p, err := m.prepare(t, spec, id)
		if err != nil {
			return "", nil, err
		}
		select {
		case <-p.done:
			if p.err != nil {
				return "", nil, p.err
			}
		case <-ctx.Done():
			return "", nil, canceled(ctx)
		}
	}
}

// preparedNow returns the manifest of an image that is there and whole. One that
// is not whole is removed: it can be made again.
func (m *Manager) preparedNow(ctx context.Context, id sandbox.ID) (*image.Manifest, error) {
	if !m.o.Prepared.Has(id) {
		return nil, nil
	}
	manifest, err := m.o.Prepared.Open(id)
	if err == nil {
		err = m.compatible(ctx, manifest)
	}
	if err == nil {
		return manifest, nil
	}
	m.log.Warn("the image of a template is made again", "image", id, "err", err)
	return nil, m.o.Prepared.Remove(id)
}

// prepare sets out to make the image, unless somebody does.
func (m *Manager) prepare(t sandbox.Template, spec sandbox.Spec, id sandbox.ID) (*preparation, error) {
	m.prep.mu.Lock()
	defer m.prep.mu.Unlock()
	if p := m.prep.now[id]; p != nil {
		return p, nil
	}
	if !m.enter() {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the manager is ending")
	}
	p := &preparation{done: make(chan struct{})}
	m.prep.now[id] = p
	go func() {
		defer m.wg.Done()
		ctx, cancel := context.WithTimeout(m.ctx, readyTime+imageTime)
		defer cancel()
		p.err = m.prepareNow(ctx, t, spec, id)
		m.prep.mu.Lock()
		delete(m.prep.now, id)
		m.prep.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// prepareNow makes the image. The sandbox that it is taken of is gone afterwards.
func (m *Manager) prepareNow(ctx context.Context, t sandbox.Template, spec sandbox.Spec, id sandbox.ID) (err error) {
	spec = sandbox.Spec{
		Template: t.Name, Boundary: spec.Boundary, AllowWeaker: spec.AllowWeaker, Limits: spec.Limits,
		Labels: map[string]string{preparingLabel: t.Name}, Timeout: 2 * readyTime,
	}
	c := &create{m: m, spec: spec, preparing: true, began: time.Now()}
	made, err := c.make(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if _, kerr := m.kill(context.WithoutCancel(ctx), c.e, sandbox.EndFinished); kerr != nil {
			m.log.Warn("the sandbox of a template is not gone yet", "sandbox", c.e.id, "err", kerr)
		}
		if err != nil {
			err = errors.Join(err, m.o.Prepared.Remove(id))
		}
	}()
	if err := m.ready(ctx, string(made.Sandbox.ID), t); err != nil {
		return err
	}
	m.crash(CrashPreparedReady)
	release, err := m.room(ctx, c.e, sandbox.KindMemory, false)
	if err != nil {
		return err
	}
	defer release()
	dir, err := m.o.Prepared.Begin(id)
	if err != nil {
		return err
	}
	manifest, _, err := m.saveLive(ctx, c.e, dir, "its template is ready", sandbox.KindMemory)
	if err != nil {
		return err
	}
	manifest.Snapshot, manifest.Hostname = id, ""
	if err := m.o.Prepared.Seal(manifest); err != nil {
		return err
	}
	m.crash(CrashPreparedSealed)
	return m.o.Prepared.Publish(id)
}

// ready runs a template's start command and waits until its ready command
// succeeds.
func (m *Manager) ready(ctx context.Context, ref string, t sandbox.Template) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, sandbox.Errorf(sandbox.DeadlineExceeded, "the template was not ready in %v", readyTime).
		WithField("ready_command", t.Ready).WithHint("try both commands in a sandbox of the template that has neither"))
	defer cancel()
	shell := func(id, line string) Start {
		return Start{Start: guest.Start{ID: id, Argv: []string{"/bin/sh", "-c", line}, KeepTree: id == startProcess}}
	}
	if _, err := m.StartProcess(ctx, ref, shell(startProcess, t.Start)); err != nil {
		return sandbox.AsError(err).WithField("start_command", t.Start)
	}
	for n := range readyTries {
		p, err := m.Process(ctx, ref, startProcess)
		if err != nil {
			return orCause(ctx, err)
		}
		if x := p.Exit; x != nil && x.Status() != 0 {
			return m.notReady(ctx, ref, startProcess, "the template's start command ended with "+strconv.Itoa(x.Status())).
				WithField("start_command", t.Start)
		}
		id := "ready" + strconv.Itoa(n)
		if _, err := m.StartProcess(ctx, ref, shell(id, t.Ready)); err != nil {
			return orCause(ctx, err)
		}
		done, err := m.WaitProcess(ctx, ref, id)
		if err != nil {
			return orCause(ctx, err)
		}
		if done.Exit.Status() == 0 {
			return nil
		}
		if err := m.KillProcess(ctx, ref, id, false); err != nil { // and forgets it
			return orCause(ctx, err)
		}
		if !pauseFor(ctx, readyEvery) {
			break
		}
	}
	return orCause(ctx, sandbox.Errorf(sandbox.DeadlineExceeded, "the template was not ready when its ready command had been run %d times", readyTries).
		WithField("ready_command", t.Ready))
}

func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// notReady is an error with the end of what a process has written, which is the
// guest's word.
func (m *Manager) notReady(ctx context.Context, ref, process, why string) *sandbox.Error {
	e := sandbox.Errorf(sandbox.Conflict, "%s", why)
	if said := m.lastWords(ctx, ref, process); said != "" {
		e = e.WithHint("it said: %s", said)
	}
	return e
}

const maxWords = 512

// lastWords returns the end of the output of a process that has ended.
func (m *Manager) lastWords(ctx context.Context, ref, process string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := m.Output(ctx, ref, process, 0, 0)
	if err != nil {
		return ""
	}
	defer body.Close()
	r := bufio.NewReader(body)
	var said []byte
	for {
		f, err := guest.ReadFrame(r)
		if err != nil || f.Type == guest.FrameExit {
			break
		}
		b := make([]byte, f.Len)
		if _, err := io.ReadFull(r, b); err != nil {
			break
		}
		if f.Type == guest.FrameData {
			said = append(said, b...)
			said = said[max(0, len(said)-maxWords):]
		}
	}
	return guest.Tidy(strings.ToValidUTF8(strings.TrimSpace(string(said)), ""))
}

// sweepPrepared removes the images that no template would make now.
func (m *Manager) sweepPrepared(ctx context.Context) {
	if m.o.Prepared == nil {
		return
	}
	err := m.o.Prepared.Sweep(func(id sandbox.ID) bool {
		manifest, err := m.o.Prepared.Manifest(id)
		return err == nil && m.wouldPrepare(ctx, manifest)
	})
	if err != nil {
		m.log.Warn("images of templates were not removed", "err", err)
	}
}

// wouldPrepare tells whether a template would make the image again, just so.
func (m *Manager) wouldPrepare(ctx context.Context, f *image.Manifest) bool {
	if m.compatible(ctx, f) != nil {
		return false
	}
	t, err := m.findTemplate(ctx, f.Template.Name)
	if err != nil || t.Start == "" {
		return false
	}
	id, err := m.imageOf(t, f.Boundary, f.Limits, f.Explicit)
	return err == nil && id == f.ID()
}
