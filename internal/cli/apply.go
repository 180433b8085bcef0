package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) applyCommand() *cobra.Command {
	ap := &applier{a: a}
	cmd := &cobra.Command{
		Use:   "apply [flags] SNAPSHOT DST",
		Short: "put a directory that was kept into a sandbox or onto this machine",
		Long: `Apply unpacks a snapshot of a directory (belljar snapshot create --dir) into the
directory DST: SANDBOX:PATH, or a path of this machine. Files of the same name are
replaced and others left alone.

On this machine it is done by this program with your rights. It shows what would
be added and replaced and asks; a program says --yes. As with belljar cp, set-id
bits, devices, FIFOs, sockets and links that lead out are left behind. Names that
this machine executes or trusts, such as .git/hooks and .envrc, are refused unless
--allow-protected is given: see docs/WORKSPACE.md.`,
		Example:           "  belljar apply site:v1 other:/home/user/site\n  belljar apply site:v1 ./site\n  belljar apply site:v1 ./site --yes",
		Args:              between(2, 2),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err := ap.run(ctx, argv[0], parseEnd(argv[1]))
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&ap.user, "user", "u", "", "user inside (default: the sandbox's)")
	cmd.Flags().BoolVarP(&ap.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&ap.protected, "allow-protected", false, "also write names that this machine executes or trusts")
	return cmd
}

// applier is one apply on its way.
type applier struct {
	a         *app
	user      string
	yes       bool
	protected bool
}

func (ap *applier) run(ctx context.Context, ref string, dst end) error {
	if dst.std || dst.path == "" {
		return usagef("name a directory, or SANDBOX:DIRECTORY", "belljar apply: there is no directory to unpack into")
	}
	c, err := ap.a.daemon(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.GetSnapshot(ctx, ref) // its name may mean another one later
	if err != nil {
		return err
	}
	if dst.ref != "" {
		return ap.inside(ctx, c, s, dst)
	}
	if !ap.yes && !terminal.IsTerminal(ap.a.in) {
		return usagef("look at what it does on a terminal, or say --yes", "belljar apply: nobody can be asked here")
	}
	return ap.here(ctx, c, s, dst.path)
}

// inside unpacks in another sandbox: its guest does it.
func (ap *applier) inside(ctx context.Context, c *client.Client, s sandbox.Snapshot, dst end) error {
	show := ap.a.progress("applying")
	defer show.end()
	cp := &copier{a: ap.a, c: c, user: ap.user, show: show}
	if err := cp.absolute(ctx, &dst); err != nil {
		return err
	}
	kind, err := cp.kind(ctx, dst)
	switch {
	case err != nil:
		return err
	case kind == "":
		if _, err := c.Mkdir(ctx, dst.ref, dst.path, ap.user); err != nil {
			return err
		}
	case kind != wire.TypeDir:
		return sandbox.Errorf(sandbox.Invalid, "a directory cannot take the place of a file").WithField("destination", dst.ref+":"+dst.path).
			WithHint("remove the file first")
	}
	r, err := c.GetSnapshotTar(ctx, string(s.ID))
	if err != nil {
		return err
	}
	defer r.Close()
	watch := &tarWatch{inside: true}
	renamed := renameTop(r, ".", watch)
	defer renamed.Close()
	if err := c.PutTar(ctx, dst.ref, dst.path, ap.user, renamed); err != nil {
		return err
	}
	renamed.Close()
	<-renamed.done
	cp.summary(archive.Summary{}, watch.left)
	if watch.links.count > 0 {
		ap.a.warn("left out, links that lead out of the directory: %d: %v", watch.links.count, &watch.links)
	}
	return nil
}

// here unpacks on this machine: beside the destination first, from where it is
// shown and then moved.
func (ap *applier) here(ctx context.Context, c *client.Client, s sandbox.Snapshot, dst string) error {
	r, err := c.GetSnapshotTar(ctx, string(s.ID))
	if err != nil {
		return err
	}
	defer r.Close()
	watch, err := watchPlace(dst)
	if err != nil {
		return err
	}
	watch.strip = false // the top is the destination itself
	show := ap.a.progress("unpacking")
	cp := &copier{a: ap.a, c: c, show: show}
	renamed := renameTop(r, ".", watch)
	defer renamed.Close()
	p, err := archive.Prepare(ctx, dst, renamed, archive.Options{
		Links: archive.LinksSkip, Devices: archive.DevicesSkip, Umask: umask(), Progress: cp.tell,
	})
	if err != nil {
		show.end()
		return err
	}
	defer p.Close()
	<-renamed.done
	changes, err := p.Changes(ctx)
	cp.summary(p.Summary, watch.left)
	show.end()
	if err != nil {
		return err
	}
	return ap.place(ctx, p, changes, watch, dst)
}

// place shows what would be done and does it when it may.
func (ap *applier) place(ctx context.Context, p *archive.Prepared, changes []archive.Change, watch *tarWatch, dst string) error {
	if n := watch.trusted.count; n > 0 && !ap.protected {
		return sandbox.Errorf(sandbox.Denied, "%d of its names this machine executes or trusts: %v", n, &watch.trusted).
			WithField("destination", dst).WithHint("choose another destination, or say --allow-protected if you know what is in them")
	}
	if len(changes) == 0 {
		ap.a.warn("nothing is to be done: all of it is there already")
		return nil
	}
	if !ap.yes {
		ap.show(changes)
		if watch.trusted.count > 0 {
			ap.a.warn("%d of these names this machine executes or trusts: %v", watch.trusted.count, &watch.trusted)
		}
		if err := ap.ask(ctx, dst); err != nil {
			return err
		}
	}
	if _, err := p.Place(); err != nil {
		return err
	}
	return ap.report(changes)
}

// maxShown is how many changes are shown before a question.
const maxShown = 500

func (ap *applier) show(changes []archive.Change) {
	for i, c := range changes {
		if i == maxShown {
			fmt.Fprintf(ap.a.err, "and %d more\n", len(changes)-i)
			return
		}
		fmt.Fprintln(ap.a.err, line(c))
	}
}

// line is a change as belljar diff writes it.
func line(c archive.Change) string {
	kind, slash := "C", ""
	if c.New {
		kind = "A"
	}
	if c.Dir {
		slash = "/"
	}
	return kind + " " + terminal.Escape(c.Path) + slash
}

// ask waits for a yes.
func (ap *applier) ask(ctx context.Context, dst string) error {
	abs, err := filepath.Abs(dst)
	if err != nil {
		abs = dst
	}
	fmt.Fprintf(ap.a.err, "Do that in %s? [y/N] ", terminal.Escape(abs))
	answer := make(chan string, 1)
	go func() { // ends with the answer, or with the program
		s, _ := bufio.NewReader(io.LimitReader(ap.a.in, 1<<10)).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(s))
	}()
	select {
	case s := <-answer:
		if s == "y" || s == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return sandbox.Errorf(sandbox.Canceled, "nothing was changed")
}

// report prints what was done, for programs too.
func (ap *applier) report(changes []archive.Change) error {
	if !ap.yes {
		return nil // it has been shown
	}
	for _, c := range changes {
		if _, err := fmt.Fprintln(ap.a.out, line(c)); err != nil {
			return err
		}
	}
	return nil
}
