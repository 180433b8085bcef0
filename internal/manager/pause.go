package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// Pause writes memory and files of a running sandbox to disk and gives back
// everything else that it holds of the host. It returns when that is done; of
// several at once all return then, and a caller that goes away does not stop it.
// A sandbox that is paused already is no error. When it fails the sandbox runs
// on. With [sandbox.KindFiles] its memory is given up, and all its processes end:
// resumed, it boots anew with its files.
func (m *Manager) Pause(ctx context.Context, ref string, kind sandbox.SnapshotKind) (sandbox.Sandbox, error) {
	e, err := m.find(ref)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	err = m.pause(ctx, e, pausing{kind: kind})
	return e.snapshot(), err
}

// pausing is what is asked of a pause.
type pausing struct {
	kind    sandbox.SnapshotKind
	timeout bool // it is for the sake of the timeout
}

// pause is Pause, for a caller's sake or because the timeout is over.
func (m *Manager) pause(ctx context.Context, e *entry, p pausing) error {
	for ctx.Err() == nil {
		sb, changed := e.watch()
		switch sb.State {
		case sandbox.Paused:
			return nil
		case sandbox.Running:
			was, err := m.work(ctx, e, workPause, func(ctx context.Context) error { return m.pauseNow(ctx, e, p) })
			if was == workPause {
				return err
			}
		case sandbox.Pausing, sandbox.Resuming:
			if err := awaitChange(ctx, changed); err != nil {
				return err
			}
		default:
			return notRunning(sb)
		}
	}
	return canceled(ctx)
}

// pausable tells what of a sandbox cannot be paused, before anything is done.
func (m *Manager) pausable(mounts []sandbox.Mount) error {
	if m.images == nil {
		return sandbox.Errorf(sandbox.Unsupported, "a sandbox without a daemon cannot be saved").
			WithHint("make it with `belljar create` or `belljar run -d`")
	}
	if len(mounts) > 0 {
		return sandbox.Errorf(sandbox.Unsupported, "a sandbox with a mounted directory cannot be saved yet").
			WithField("volume", mounts[0].Target).
			WithHint("make it without -v and carry files with `belljar cp`")
	}
	return nil
}

// pauseNow takes the sandbox from Running to Paused.
func (m *Manager) pauseNow(ctx context.Context, e *entry, p pausing) error {
	files := p.kind == sandbox.KindFiles
	if files {
		m.lookAtCommand(ctx, e)
	}
	sb := e.snapshot()
	if sb.State != sandbox.Running {
		return nil // another was faster; the caller looks again
	}
	if err := m.savable(ctx, &sb, p.kind); err != nil {
		return err
	}
	if files && sb.AutoRemove {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox lives only as long as its command, which a pause without memory ends").
			WithField("memory", "false").WithHint("pause it with its memory, or kill it")
	}
	release, err := m.room(ctx, e, p.kind, true)
	if err != nil {
		return err
	}
	defer release()
	dir, err := m.images.Begin(e.id)
	if err != nil {
		return err
	}
	message := "somebody asked for a pause"
	if p.timeout {
		message = "its timeout is over"
	}
	if err := m.move(e, sandbox.Pausing, message, func(r *Record) {
		r.Sandbox.PausedKind = p.kind // whoever goes on after a crash must know
		if r.stopClock(); p.timeout {
			r.Remaining = r.Timeout // the next turn has as long as this one
		}
	}); err != nil {
		return err
	}
	m.crash(CrashPauseBegun)
	m.arm(e) // not Running: stops the timer
	done, err := m.checkpoint(ctx, e, wire.Checkpoint{Dir: dir, FilesOnly: files})
	if err != nil {
		if ctx.Err() != nil {
			return err // it is killed, or the next manager goes on with it
		}
		m.log.Warn("a sandbox could not be paused", "sandbox", e.id, "err", err, "cause", sandbox.AsError(err).Unwrap())
		return m.notPaused(ctx, e, err)
	}
	m.log.Info("a sandbox was saved", "sandbox", e.id, "steps", steps(done.Timeline))
	return m.saved(ctx, e, done.Files)
}

// steps tells in a word where the time of an operation went.
func steps(list []sandbox.Step) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%s %.1fms ", s.Name, float64(s.Took.Microseconds())/1000)
	}
	return strings.TrimSpace(b.String())
}

// imageTime bounds the writing and the reading of an image: a sentry that was
// taken over may take for ever, and its timeout stands still meanwhile.
const imageTime = 10 * time.Minute

// checkpoint has the keeper write an image, as req says. The sandbox goes on, if
// it does, under the next generation.
func (m *Manager) checkpoint(ctx context.Context, e *entry, req wire.Checkpoint) (*wire.Checkpointed, error) {
	e.mu.Lock()
	k, r := e.keeper, e.rec
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	req.Hello = m.hello(&r, r.Sandbox.Generation+1)
	return k.Checkpoint(ctx, e.id, req)
}

// hello is what a guest is told of its sandbox.
func (m *Manager) hello(r *Record, generation uint64) guest.Hello {
	return guest.Hello{
		Protocol: guest.Protocol, Build: m.o.Build,
		SandboxID: r.Sandbox.ID, Generation: generation, Token: rand.Text(),
		Hostname: r.Sandbox.Hostname, MachineID: m.machineID(r.Sandbox.ID), Env: r.Env,
		User: r.Sandbox.User, Workdir: r.Sandbox.Workdir, Time: time.Now(),
		Limits: guestLimits(r.Limits),
	}
}

func guestLimits(l sandbox.Limits) guest.GuestLimits {
	return guest.GuestLimits{Processes: l.Processes, OpenFiles: l.OpenFiles, OutputBytes: l.OutputBytes}
}

// notPaused lets the sandbox run on under the generation that the keeper tells,
// and returns why it was not paused.
func (m *Manager) notPaused(ctx context.Context, e *entry, why error) error {
	m.settlePausing(ctx, e, sandbox.KindOf(why) != sandbox.Unavailable)
	if sb := e.snapshot(); sb.State == sandbox.Paused {
		return nil // the answer was lost and nothing else
	}
	return why
}

// saved takes a sandbox, whose image is complete and of which the keeper has
// nothing any more, to Paused. The image is all that there is of it, so this is
// tried until it works. Files, when they are known, are those of the image.
func (m *Manager) saved(ctx context.Context, e *entry, files []image.File) error {
	m.crash(CrashPauseSaved)
	err := m.retrying(ctx, e, "a sandbox that was saved cannot be put to rest yet", func() error {
		if m.images.HasDraft(e.id) {
			if err := m.seal(ctx, e, files); err != nil {
				return err
			}
			if err := m.images.Publish(e.id); err != nil {
				return err
			}
			m.crash(CrashPauseRenamed)
		}
		return m.rest(e)
	})
	return err
}

// seal writes the manifest.
func (m *Manager) seal(ctx context.Context, e *entry, files []image.File) error {
	e.mu.Lock()
	r := e.rec
	e.mu.Unlock()
	template, err := m.template(ctx, r.Sandbox.Template)
	if err != nil {
		return err
	}
	manifest := m.manifest(&r, template, r.Sandbox.PausedKind)
	manifest.Files = files
	return m.images.Seal(manifest)
}

// manifest is that of an image of a sandbox that is saved now.
func (m *Manager) manifest(r *Record, t image.Template, kind sandbox.SnapshotKind) *image.Manifest {
	sb := &r.Sandbox
	out := &image.Manifest{
		Version: image.Version, Kind: cmp.Or(kind, sandbox.KindMemory), Sandbox: sb.ID, Generation: sb.Generation,
		Build: m.o.Build, Boundary: sb.Isolation.Effective, Template: t,
		Limits: r.Limits, Explicit: r.Explicit, User: sb.User, Workdir: sb.Workdir, Hostname: sb.Hostname, Env: r.Env,
		SavedAt: time.Now().UTC().Round(0),
	}
	if out.Kind == sandbox.KindMemory { // with files alone no process goes on
		out.Command, out.Captured = sb.Command, r.Captured
	}
	return out
}

// template tells what is known of a template: of one that is gone its name.
func (m *Manager) template(ctx context.Context, name string) (image.Template, error) {
	list, err := m.o.Templates.List(ctx)
	if err != nil {
		return image.Template{}, err
	}
	for _, t := range list {
		if t.Name == name {
			return image.Template{Name: name, Kind: t.Kind, Digest: t.Digest, HostBacked: t.HostBacked, CreatedAt: t.CreatedAt.UTC().Round(0)}, nil
		}
	}
	return image.Template{Name: name}, nil
}

// rest makes the sandbox Paused: its image is in place, and nothing else of it
// is on the host.
func (m *Manager) rest(e *entry) error {
	manifest, err := m.images.Open(e.id)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.keeper = nil
	e.life++
	e.unpaused = 0
	e.mu.Unlock()
	err = m.rested(e, manifest)
	if err == nil {
		m.crash(CrashPausePaused)
	}
	return err
}
