package cli

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/filetree"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) diffCommand() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:   "diff SANDBOX",
		Short: "list what a sandbox has changed since its template",
		Long: `Diff lists what a sandbox has changed in its root since its template: A for what
was added, C for what was changed and D for what was deleted. Directories on the
way to a change are changed. What lies on mounts is left out, and so is what
Belljar makes in every sandbox. The list is the word of the kernel inside. A
sandbox that is paused with its memory is resumed for it; one that is paused with
--memory=false is not.`,
		Example:           "  belljar diff work\n  belljar diff work -o json",
		Args:              between(1, 1),
		ValidArgsFunction: a.firstSandbox,
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			list, err := a.diff(ctx, argv[0])
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, list)
			}
			for _, d := range list {
				if _, err := fmt.Fprintf(a.out, "%s %s\n", d.Change, terminal.Escape(d.Path)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

// difference is how one change is told to programs.
type difference struct {
	Change  filetree.Kind `json:"change"`
	Path    string        `json:"path"`
	RawPath []byte        `json:"raw_path,omitempty"` // where Path is not what it is called, in base64
	Type    filetree.Type `json:"type"`
	Size    int64         `json:"size"`           // of regular files, in bytes
	Mode    string        `json:"mode,omitempty"` // permissions in octal; of what was deleted nothing is known
	Target  string        `json:"target,omitempty"`
	SameAs  string        `json:"same_as,omitempty"` // of a hard link: the path that has size and mode
}

func (a *app) diff(ctx context.Context, ref string) ([]difference, error) {
	c, err := a.mustRun(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	sb, err := c.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	lower, err := a.lower(ctx, sb.Template)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	progress := a.progress("asking " + ref)
	defer progress.end()
	changes, err := c.Changes(ctx, string(sb.ID))
	if err != nil {
		return nil, err
	}
	defer changes.Close()
	found, err := filetree.Diff(filetree.Entries(changes), lower, append(mountPoints(sb), filetree.Own...))
	if err != nil {
		return nil, err
	}
	out := make([]difference, len(found))
	for i, d := range found {
		out[i] = tell(d)
	}
	return out, nil
}

func tell(d filetree.Difference) difference {
	out := difference{Change: d.Kind, Path: d.Path, Type: d.Type, Size: d.Size, Target: d.Target, SameAs: d.Same}
	if !fs.ValidPath("x" + d.Path) { // not UTF-8
		out.RawPath = []byte(d.Path)
	}
	if d.Kind != filetree.Deleted && d.Type != filetree.Link {
		out.Mode = fmt.Sprintf("%04o", d.Mode)
	}
	return out
}

// mountPoints are what was made for a sandbox's mounts.
func mountPoints(sb sandbox.Sandbox) (out []string) {
	for _, m := range sb.Mounts {
		out = append(out, m.Target)
	}
	return out
}

// lower opens the template's root, with our own rights.
func (a *app) lower(ctx context.Context, template string) (*filetree.Lower, error) {
	store, err := a.templates()
	if err != nil {
		return nil, err
	}
	root, _, err := store.Resolve(ctx, template)
	if err != nil {
		return nil, err
	}
	l, err := filetree.OpenLower(root.Path)
	for _, b := range root.Binds {
		if err == nil {
			err = l.Lay(b.Source, b.Target)
		}
	}
	if err != nil {
		l.Close()
		return nil, sandbox.Errorf(sandbox.Internal, "the template cannot be looked at: %w", err).WithField("template", template)
	}
	return l, nil
}
