package template

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// The kinds of template.
const (
	KindHost     = "host"
	KindImported = "imported"
	KindBuilt    = "built"
)

// recordVersion is that of template.json.
const recordVersion = 1

// Details is everything that is known of a template; template.json holds it.
type Details struct {
	sandbox.Template
	Version  int            `json:"version"`
	Shifted  bool           `json:"shifted"`            // owners on disk are the true ones
	Entries  int64          `json:"entries,omitempty"`  // files, directories and links
	Skipped  int64          `json:"skipped,omitempty"`  // entries or attributes that were left out
	Skips    []archive.Skip `json:"skips,omitempty"`    // the first of them
	Packages []string       `json:"packages,omitempty"` // asked for, in a built one
}

// maxRecord bounds template.json.
const maxRecord = 1 << 20

func (s *Store) readRecord(name string) (*Details, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, name, recordName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, notFound(name)
	case err != nil:
		return nil, storeError("read", err)
	case len(b) > maxRecord:
		return nil, sandbox.Errorf(sandbox.Internal, "%s is too long", recordName).WithField("template", name)
	}
	d := &Details{}
	if err := json.Unmarshal(b, d); err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "%s cannot be read: %w", recordName, err).WithField("template", name).
			WithHint("remove it with `belljar template rm %s` and import it again", name)
	}
	if d.Version != recordVersion {
		return nil, sandbox.Errorf(sandbox.Unsupported, "the template was made by another version of Belljar").
			WithField("template", name).WithHint("import it again")
	}
	d.Name = name
	return d, nil
}

// maxCommand bounds a start or ready command, in bytes.
const maxCommand = 64 << 10

// SetCommands gives a template a start command, in which state every sandbox of
// it begins, and a ready command, which tells when that is reached; both are for
// a shell. Two empty ones take them away.
func (s *Store) SetCommands(ctx context.Context, name, start, ready string) (*Details, error) {
	for field, c := range map[string]string{"start_command": start, "ready_command": ready} {
		if len(c) > maxCommand || strings.ContainsRune(c, 0) {
			return nil, sandbox.Errorf(sandbox.Invalid, "a command has at most %d bytes and no NUL", maxCommand).WithField(field, c)
		}
	}
	if (start == "") != (ready == "") {
		return nil, sandbox.Errorf(sandbox.Invalid, "a start command needs a ready command, and the other way round").
			WithField("start_command", start).WithHint("--ready-command true takes it for ready at once")
	}
	if err := checkNew(name); err != nil {
		return nil, err
	}
	l, err := s.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	d, err := s.readRecord(name)
	if err != nil {
		return nil, err
	}
	d.Start, d.Ready = start, ready
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, storeError("write", err)
	}
	path := filepath.Join(s.dir, name, recordName)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, storeError("write", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	return d, storeErrorOrNil("write", err)
}

func (w *work) writeRecord(d *Details) error {
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return storeErrorOrNil("write", os.WriteFile(w.path(recordName), append(b, '\n'), 0o600))
}

func storeErrorOrNil(op string, err error) error {
	if err == nil {
		return nil
	}
	return storeError(op, err)
}

func notFound(name string) error {
	return sandbox.Errorf(sandbox.NotFound, "no such template").WithField("template", name).
		WithHint("`belljar template ls` lists what there is; `belljar template import` and `build` make new ones")
}

// checkNew checks a name for a new template.
func checkNew(name string) error {
	if err := sandbox.CheckName("template", name); err != nil {
		return err
	}
	if name == KindHost {
		return sandbox.Errorf(sandbox.Invalid, "this name stands for the machine's own programs").
			WithField("template", name).WithHint("choose another name")
	}
	return nil
}

// Get returns what is known of a template.
func (s *Store) Get(ctx context.Context, name string) (*Details, error) {
	if err := sandbox.CheckName("template", name); err != nil {
		return nil, err
	}
	if name == KindHost {
		d := hostDetails()
		return &d, nil
	}
	return s.readRecord(name)
}

// List returns all templates by name, the host's first. What cannot be read is
// listed with the kind "broken".
func (s *Store) List(ctx context.Context) ([]sandbox.Template, error) {
	out := []sandbox.Template{hostDetails().Template}
	names, err := readNames(s.dir)
	if err != nil {
		return nil, storeError("list", err)
	}
	slices.Sort(names)
	for _, n := range names {
		if strings.HasPrefix(n, ".") || sandbox.CheckName("template", n) != nil {
			continue
		}
		d, err := s.readRecord(n)
		if sandbox.KindOf(err) == sandbox.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			d = &Details{Template: sandbox.Template{Name: n, Kind: "broken"}}
		}
		out = append(out, d.Template)
	}
	return out, nil
}

// Resolve returns the root of a template for a create, and the template.
func (s *Store) Resolve(ctx context.Context, name string) (driver.Root, sandbox.Template, error) {
	if err := sandbox.CheckName("template", name); err != nil {
		return driver.Root{}, sandbox.Template{}, err
	}
	if name == KindHost {
		return s.resolveHost(ctx)
	}
	d, err := s.readRecord(name)
	if err != nil {
		return driver.Root{}, sandbox.Template{}, err
	}
	root := filepath.Join(s.dir, name, rootName)
	if info, err := os.Lstat(root); err != nil || !info.IsDir() {
		return driver.Root{}, sandbox.Template{}, sandbox.Errorf(sandbox.Internal, "the template's root is missing").
			WithField("template", name).WithHint("remove it with `belljar template rm %s` and import it again", name)
	}
	return driver.Root{Path: root, Shifted: d.Shifted, Setuid: d.Setuid, Digest: d.Digest}, d.Template, nil
}
