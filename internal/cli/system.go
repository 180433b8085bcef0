package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/template"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) systemCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "system",
		Short:   "see and bound what takes disk",
		Example: "  belljar system df\n  belljar system prune\n  belljar system quota --kept 50G",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.systemDF(), a.systemPrune(), a.systemQuota())
	return cmd
}

// diskKinds is the order in which kinds are told.
var diskKinds = []sandbox.DiskKind{
	sandbox.DiskTemplates, sandbox.DiskPaused, sandbox.DiskSnapshot, sandbox.DiskPrepared, sandbox.DiskFork, sandbox.DiskLogs, sandbox.DiskJournal,
}

// diskTotal is one line of df.
type diskTotal struct {
	Kind             sandbox.DiskKind `json:"kind"`
	Count            int              `json:"count"`
	SizeBytes        int64            `json:"size_bytes"`
	ReclaimableBytes int64            `json:"reclaimable_bytes"`
}

// diskResult is what df prints for programs.
type diskResult struct {
	Totals []diskTotal `json:"totals"`
	sandbox.DiskUse
}

func (a *app) systemDF() *cobra.Command {
	var f *format
	var verbose bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "tell what takes disk",
		Long: `Df tells what takes disk: templates, paused sandboxes, snapshots, images of
templates that start with a command, logs and the journal. What two things have in
common counts for the first of them. Reclaimable is what belljar system prune --all
would free.`,
		Example: "  belljar system df\n  belljar system df -v\n  belljar system df -o json",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			use, err := a.diskUse(cmd.Context())
			if err != nil {
				return err
			}
			totals := diskTotals(use.Items)
			switch {
			case f.machine():
				return encode(a.out, *f, diskResult{totals, use})
			case verbose:
				return printItems(a.out, use.Items)
			}
			return printDisk(a.out, totals, &use)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "tell of each thing")
	f = a.formatFlag(cmd)
	return cmd
}

// diskUse asks the daemon and adds the templates, which are the caller's.
func (a *app) diskUse(ctx context.Context) (sandbox.DiskUse, error) {
	c, err := a.daemon(ctx)
	if err != nil {
		return sandbox.DiskUse{}, err
	}
	defer c.Close()
	use, err := c.DiskUse(ctx)
	if err != nil {
		return use, err
	}
	items, err := a.templateItems(ctx, use.TemplatesInUse)
	use.Items = append(items, use.Items...)
	return use, err
}

func (a *app) templateItems(ctx context.Context, used []string) ([]sandbox.DiskItem, error) {
	s, err := a.templates()
	if err != nil {
		return nil, err
	}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandbox.DiskItem
	for _, t := range list {
		if t.Kind == template.KindHost {
			continue
		}
		item := sandbox.DiskItem{Kind: sandbox.DiskTemplates, ID: t.Name, Name: t.Name, SizeBytes: t.SizeBytes}
		if !slices.Contains(used, t.Name) {
			item.Reason, item.All, item.ReclaimableBytes = "nothing starts from it", true, t.SizeBytes
		}
		out = append(out, item)
	}
	return out, nil
}

func diskTotals(items []sandbox.DiskItem) []diskTotal {
	var out []diskTotal
	for _, kind := range diskKinds {
		t := diskTotal{Kind: kind}
		for _, item := range items {
			if item.Kind == kind {
				t.Count++
				t.SizeBytes += item.SizeBytes
				t.ReclaimableBytes += item.ReclaimableBytes
			}
		}
		out = append(out, t)
	}
	return out
}

func printDisk(w io.Writer, totals []diskTotal, use *sandbox.DiskUse) error {
	t := newTable("KIND", "COUNT", "SIZE", "RECLAIMABLE")
	for _, of := range totals {
		t.add(string(of.Kind), strconv.Itoa(of.Count), formatSize(of.SizeBytes), formatSize(of.ReclaimableBytes))
	}
	if err := t.write(w); err != nil {
		return err
	}
	kept := ""
	if use.Quota.KeptBytes > 0 {
		kept = fmt.Sprintf("; paused sandboxes and snapshots have %s of %s", formatSize(use.KeptBytes), formatSize(use.Quota.KeptBytes))
	}
	_, err := fmt.Fprintf(w, "\n%s free, of which %s stay so%s\n", formatSize(use.FreeBytes), formatSize(use.Quota.FreeBytes), kept)
	return err
}

func printItems(w io.Writer, items []sandbox.DiskItem) error {
	t := newTable("KIND", "ID", "NAME", "SIZE", "SHARED", "RECLAIMABLE", "REASON")
	for _, i := range items {
		reason := i.Reason
		if i.All {
			reason += " (--all)"
		}
		t.add(string(i.Kind), i.ID, i.Name, formatSize(i.SizeBytes), formatSize(i.SharedBytes), formatSize(i.ReclaimableBytes), reason)
	}
	return t.write(w)
}

func (a *app) systemPrune() *cobra.Command {
	p := &pruning{a: a}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "remove what nobody needs",
		Long: `Prune removes records and logs of dead sandboxes, what was left half made, and
images that no template would make now. With --all also snapshots without a name
and templates from which nothing starts. It shows what would go and asks; without a
terminal it removes only with --force.`,
		Example: "  belljar system prune\n  belljar system prune --all --force",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err := p.run(ctx)
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&p.all, "all", false, "snapshots without a name and unused templates, too")
	cmd.Flags().BoolVarP(&p.force, "force", "f", false, "do not ask")
	p.format = a.formatFlag(cmd)
	return cmd
}

// pruning is one prune.
type pruning struct {
	a          *app
	all, force bool
	format     *format
	c          *client.Client
}

func (p *pruning) run(ctx context.Context) (err error) {
	if p.c, err = p.a.daemon(ctx); err != nil {
		return err
	}
	defer p.c.Close()
	if !p.force {
		plan, err := p.prune(ctx, true)
		if err != nil {
			return err
		}
		if len(plan.Items) == 0 {
			return p.report(plan)
		}
		if err := p.confirm(ctx, &plan); err != nil {
			return err
		}
	}
	progress := p.a.progress("pruning")
	done, err := p.prune(ctx, false)
	progress.end()
	if err != nil {
		return err
	}
	return p.report(done)
}

// prune has the daemon remove what is its own, and removes templates. One that
// becomes free by that stays: it was not shown.
func (p *pruning) prune(ctx context.Context, dry bool) (sandbox.Pruned, error) {
	var unused []sandbox.DiskItem
	if p.all {
		var err error
		if unused, err = p.unused(ctx); err != nil {
			return sandbox.Pruned{}, err
		}
	}
	out, err := p.c.Prune(ctx, p.all, dry)
	if err != nil || len(unused) == 0 {
		return out, err
	}
	s, err := p.a.templates()
	if err != nil {
		return out, err
	}
	for _, item := range unused {
		if !dry {
			if err := s.Remove(ctx, item.Name); err != nil {
				out.Problems = append(out.Problems, err.Error())
				continue
			}
		}
		out.Items = append(out.Items, item)
		out.ReclaimedBytes += item.ReclaimableBytes
	}
	return out, nil
}

// unused returns the templates from which nothing starts.
func (p *pruning) unused(ctx context.Context) ([]sandbox.DiskItem, error) {
	use, err := p.c.DiskUse(ctx)
	if err != nil {
		return nil, err
	}
	items, err := p.a.templateItems(ctx, use.TemplatesInUse)
	return slices.DeleteFunc(items, func(i sandbox.DiskItem) bool { return i.Reason == "" }), err
}

// confirm shows what would go and waits for a yes.
func (p *pruning) confirm(ctx context.Context, plan *sandbox.Pruned) error {
	a := p.a
	if !terminal.IsTerminal(a.in) || !a.ttyErr() {
		return usagef("look at `belljar system df -v`, then give --force", "without a terminal to ask on, nothing is removed")
	}
	if err := printItems(a.err, plan.Items); err != nil {
		return err
	}
	fmt.Fprintf(a.err, "\nRemove these, for %s? [y/N] ", formatSize(plan.ReclaimedBytes))
	answer := make(chan string, 1)
	go func() { // ends with the answer, or with the program
		s, _ := bufio.NewReader(io.LimitReader(a.in, 1<<10)).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(s))
	}()
	select {
	case s := <-answer:
		if s == "y" || s == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return sandbox.Errorf(sandbox.Canceled, "nothing was removed")
}

func (p *pruning) report(done sandbox.Pruned) error {
	a := p.a
	for _, problem := range done.Problems {
		a.warn("not removed: %s", problem)
	}
	var err error
	if p.format.machine() {
		err = encode(a.out, *p.format, done)
	} else {
		for _, i := range done.Items {
			if _, err = fmt.Fprintln(a.out, terminal.Escape(strings.TrimSpace(string(i.Kind)+" "+i.ID))); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(a.out, "reclaimed %s\n", formatSize(done.ReclaimedBytes))
	}
	if err == nil && len(done.Problems) > 0 {
		err = exitStatus(exitFailure)
	}
	return err
}

func (a *app) systemQuota() *cobra.Command {
	var f *format
	var kept, free quotaSize
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "tell, or set, how much may be saved on disk",
		Long: `Quota tells how much paused sandboxes and snapshots may take together, and how
much of the disk stays free whatever is saved; with flags it sets that. A pause,
snapshot or fork that might go beyond is refused before it begins. 0 takes a bound
away. The bounds are remembered.`,
		Example: "  belljar system quota\n  belljar system quota --kept 50G --free 10G",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			var q sandbox.DiskQuota
			if kept.n == nil && free.n == nil {
				q, err = c.Quota(cmd.Context())
			} else {
				q, err = c.SetQuota(cmd.Context(), kept.n, free.n)
			}
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, q)
			}
			bound := "no bound"
			if q.KeptBytes > 0 {
				bound = formatSize(q.KeptBytes)
			}
			_, err = fmt.Fprintf(a.out, "kept  %s\nfree  %s\n", bound, formatSize(q.FreeBytes))
			return err
		},
	}
	cmd.Flags().Var(&kept, "kept", "what paused sandboxes and snapshots may take together")
	cmd.Flags().Var(&free, "free", "what stays free on the disk (default 1GiB, of a disk below 20GiB a twentieth)")
	f = a.formatFlag(cmd)
	return cmd
}

// quotaSize is a flag for a size that may be nothing, or not given.
type quotaSize struct {
	n     *int64
	typed string
}

func (q *quotaSize) Type() string   { return "size" }
func (q *quotaSize) String() string { return q.typed }

func (q *quotaSize) Set(s string) error {
	var n int64
	if s != "0" {
		var err error
		if n, err = parseSize(s); err != nil {
			return err
		}
	}
	q.n, q.typed = &n, s
	return nil
}
