package manager

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/manager/image"
	"github.com/belljar-sh/belljar/sandbox"
)

// source is the image that a sandbox starts from instead of its template.
type source struct {
	dir      string
	manifest *image.Manifest
	snapshot sandbox.ID // that it is, if it is one
	fork     *Record    // of the sandbox that is forked, if one is
	prepared sandbox.ID // of a template's image, if it is one
	release  func()
}

// open finds the image that the spec names, if it names one, and fills in what
// the spec leaves to it. The source must be released.
func (c *create) open(ctx context.Context) error {
	if c.spec.Snapshot == "" {
		return c.prepared(ctx)
	}
	m := c.m
	if m.o.Snapshots == nil {
		return errNoSnapshots().WithField("snapshot", c.spec.Snapshot)
	}
	s, err := m.borrow(c.spec.Snapshot, false)
	if err != nil {
		return err
	}
	c.from = &source{
		dir: m.o.Snapshots.Path(s.id), manifest: s.manifest, snapshot: s.id,
		release: func() { m.giveSnap(s) },
	}
	if err = c.from.fits(&c.spec); err == nil {
		err = m.compatible(ctx, s.manifest)
	}
	if err != nil {
		c.from.release()
		return err
	}
	return nil
}

// fits fills a spec in from the image, and refuses what the image settles
// otherwise.
func (s *source) fits(spec *sandbox.Spec) error {
	m := s.manifest
	switch m.Kind {
	case sandbox.KindMemory:
		if err := s.booted(spec); err != nil {
			return err
		}
	case sandbox.KindFiles:
		if err := s.sameRoot(spec); err != nil {
			return err
		}
	default:
		return sandbox.Errorf(sandbox.Invalid, "a sandbox cannot start from a snapshot of this kind").WithField("snapshot", spec.Snapshot).
			WithHint("it holds a %s: choose one of a whole sandbox, or use `belljar apply`", m.Kind)
	}
	spec.Template, spec.Boundary = m.Template.Name, m.Boundary
	spec.User = cmp.Or(spec.User, m.User)
	spec.Workdir = cmp.Or(spec.Workdir, m.Workdir)
	env := maps.Clone(m.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, spec.Env)
	spec.Env = env
	return sandbox.CheckEnv(env)
}

// sameRoot refuses another root than the one to which the image's changes were
// made.
func (s *source) sameRoot(spec *sandbox.Spec) error {
	m := s.manifest
	if spec.Template != "" && spec.Template != m.Template.Name {
		return sandbox.Errorf(sandbox.Invalid, "what starts from a snapshot has the template that was saved: %s", m.Template.Name).
			WithField("template", spec.Template).WithHint("leave it out")
	}
	if b := spec.Boundary; b != "" && b != sandbox.Auto && b != m.Boundary {
		return sandbox.Errorf(sandbox.Invalid, "what starts from a snapshot has the boundary that was saved: %s", m.Boundary).
			WithField("boundary", string(b)).WithHint("leave it out")
	}
	return nil
}

// booted refuses what a kernel whose memory was saved cannot be given any more.
func (s *source) booted(spec *sandbox.Spec) error {
	m := s.manifest
	if len(spec.Mounts) > 0 {
		return sandbox.Errorf(sandbox.Unsupported, "what starts from memory has the mounts that were saved, which are none").
			WithField("volume", spec.Mounts[0].Target).WithHint("carry files with `belljar cp`")
	}
	for _, f := range []struct{ field, asked, has string }{
		{"template", spec.Template, m.Template.Name},
		{"boundary", string(spec.Boundary), string(m.Boundary)},
		{"cpus", number(spec.Limits.CPUs), number(m.Limits.CPUs)},
		{"memory", positive(spec.Limits.MemoryBytes), positive(m.Limits.MemoryBytes)},
		{"disk", positive(spec.Limits.DiskBytes), positive(m.Limits.DiskBytes)},
		{"open_files", positive(spec.Limits.OpenFiles), positive(m.Limits.OpenFiles)},
	} {
		if f.asked != "" && f.asked != f.has && f.asked != string(sandbox.Auto) {
			return sandbox.Errorf(sandbox.Invalid, "what starts from memory has the %s that was saved: %s", f.field, f.has).
				WithField(f.field, f.asked).WithHint("leave it out, or start from a snapshot of files alone")
		}
	}
	return nil
}

func number(v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func positive(v int64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatInt(v, 10)
}

// limits are those of a sandbox that starts from the image: what its kernel was
// booted with, and of the rest what is asked for.
func (s *source) limits(asked sandbox.Limits) (sandbox.Limits, driver.Explicit) {
	l, e := s.manifest.Limits, s.manifest.Explicit
	if s.manifest.Kind == sandbox.KindFiles { // its kernel is yet to boot
		a := explicit(asked)
		return asked.Merge(l), driver.Explicit{
			CPUs: e.CPUs || a.CPUs, Memory: e.Memory || a.Memory, Processes: e.Processes || a.Processes,
			Disk: e.Disk || a.Disk, OpenFiles: e.OpenFiles || a.OpenFiles,
		}
	}
	if asked.Processes != 0 {
		l.Processes, e.Processes = asked.Processes, true
	}
	if asked.OutputBytes != 0 {
		l.OutputBytes = asked.OutputBytes
	}
	return l, e
}

// inherit gives a record what goes on of the sandbox that was saved.
func (s *source) inherit(r *Record) {
	sb, m := &r.Sandbox, s.manifest
	sb.Snapshot = s.snapshot
	r.Limits, r.Explicit = s.limits(r.Limits)
	r.Captured = slices.Clone(m.Captured)
	if sb.Command == nil {
		sb.Command = m.Command
	}
	if f := s.fork; f != nil {
		sb.ForkOf = f.Sandbox.ID
		sb.AutoRemove, sb.OnTimeout, sb.Labels = f.Sandbox.AutoRemove, f.Sandbox.OnTimeout, f.Sandbox.Labels
	}
}

// compatible tells whether this installation as it is now can make a sandbox
// of an image, without a look at the image's files.
func (m *Manager) compatible(ctx context.Context, f *image.Manifest) error {
	if f.Kind == sandbox.KindMemory && f.Build != m.o.Build {
		return sandbox.Errorf(sandbox.Conflict, "the memory was saved by another build than this one (%s)", m.o.Build).
			WithField("build", f.Build).
			WithHint("install that build again to restore it, or give it up: memory is restored by the build that saved it only")
	}
	now, err := m.template(ctx, f.Template.Name)
	if err != nil {
		return err
	}
	return sameTemplate(f.Template, now)
}
