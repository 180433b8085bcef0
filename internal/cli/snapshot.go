package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "keep sandboxes as they are, to start others from",
		Long: `A snapshot is memory and files of a sandbox at one moment. It outlives the sandbox,
and any number of sandboxes start from it: belljar create --snapshot NAME.`,
		Example: "  belljar snapshot create work deps:v1\n  belljar create --snapshot deps:v1\n  belljar snapshot ls",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.snapshotCreate(), a.snapshotLs(), a.snapshotInspect(), a.snapshotRm(), a.snapshotTag(), a.snapshotUntag(),
		a.snapshotVerify(), a.snapshotSave(), a.snapshotLoad())
	return cmd
}

func (a *app) snapshotCreate() *cobra.Command {
	var f *format
	var o snapshotOptions
	cmd := &cobra.Command{
		Use:   "create SANDBOX [NAME[:TAG]]",
		Short: "keep a sandbox as it is now",
		Long: `Create keeps memory and files of a sandbox as they are now and prints the
snapshot's ID. The sandbox goes on; it stands still while its memory is written.
Without a tag the name gets the tag latest. A name that is taken is refused: see
belljar snapshot tag --force.

With --memory=false only files are kept: what starts from the snapshot boots anew
with them, and may have other limits. With --dir it is one directory inside, which
belljar apply puts into another sandbox or onto this machine.`,
		Example:           "  belljar snapshot create work deps:v1\n  belljar snapshot create work files --memory=false\n  belljar snapshot create work site --dir /home/user/site",
		Args:              between(1, 2),
		ValidArgsFunction: a.firstSandbox,
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			c, err := a.mustRun(ctx, argv[0])
			if err != nil {
				return err
			}
			defer c.Close()
			name := ""
			if len(argv) > 1 {
				name = argv[1]
			}
			progress := a.progress("saving " + argv[0])
			s, err := o.take(ctx, c, argv[0], name)
			progress.end()
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, s)
			}
			_, err = fmt.Fprintln(a.out, s.ID)
			return err
		},
	}
	cmd.Flags().BoolVar(&o.memory, "memory", true, "keep memory and processes; else files alone")
	cmd.Flags().StringVar(&o.dir, "dir", "", "keep this directory alone")
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "user inside who reads it (default: the sandbox's)")
	f = a.formatFlag(cmd)
	return cmd
}

// snapshotOptions say what is kept.
type snapshotOptions struct {
	memory bool
	dir    string
	user   string
}

func (o *snapshotOptions) take(ctx context.Context, c *client.Client, ref, name string) (sandbox.Snapshot, error) {
	switch {
	case o.dir != "":
		if !strings.HasPrefix(o.dir, "/") {
			return sandbox.Snapshot{}, usagef("write it as it is called inside, from the root on", "--dir %q: this is no absolute path", o.dir)
		}
		return c.SnapshotDir(ctx, ref, name, o.dir, o.user)
	case !o.memory:
		return c.SnapshotFiles(ctx, ref, name)
	}
	return c.Snapshot(ctx, ref, name)
}

func (a *app) snapshotLs() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list snapshots",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.Snapshots(cmd.Context())
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, list)
			}
			t := newTable("SNAPSHOT", "NAMES", "KIND", "TEMPLATE", "SIZE", "MADE", "PROBLEM")
			for _, s := range list {
				names, size, made := "-", "-", "-"
				if !s.CreatedAt.IsZero() { // else its manifest cannot be read
					size, made = formatSize(s.SizeBytes), age(time.Since(s.CreatedAt))+" ago"
				}
				if len(s.Names) > 0 {
					names = strings.Join(s.Names, ",")
				}
				t.add(string(s.ID), names, string(s.Kind), s.Template, size, made, s.Problem)
			}
			return t.write(a.out)
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

// onSnapshots builds a command that does one thing to each snapshot that it is
// given and prints what it was called by.
func (a *app) onSnapshots(cmd *cobra.Command, doing string, act func(ctx context.Context, c *client.Client, ref string) error) *cobra.Command {
	cmd.Args = between(1, -1)
	cmd.ValidArgsFunction = a.completeSnapshots
	cmd.RunE = func(cmd *cobra.Command, refs []string) error {
		c, err := a.daemon(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		var failed error
		for _, ref := range refs {
			progress := a.progress(doing + " " + ref)
			err := act(cmd.Context(), c, ref)
			progress.end()
			if err != nil {
				failed = exitStatus(a.report(err))
				continue
			}
			if _, err := fmt.Fprintln(a.out, ref); err != nil {
				return err
			}
		}
		return failed
	}
	return cmd
}

func (a *app) snapshotRm() *cobra.Command {
	return a.onSnapshots(&cobra.Command{
		Use:     "rm SNAPSHOT...",
		Aliases: []string{"remove", "delete"},
		Short:   "remove snapshots",
		Long:    "Rm removes snapshots with all their names. Sandboxes that started from them are\nnot touched.",
		Example: "  belljar snapshot rm deps:v1",
	}, "removing", func(ctx context.Context, c *client.Client, ref string) error { return c.RemoveSnapshot(ctx, ref) })
}

func (a *app) snapshotVerify() *cobra.Command {
	return a.onSnapshots(&cobra.Command{
		Use:   "verify SNAPSHOT...",
		Short: "compare every byte of snapshots with what was saved",
		Long: `Verify compares every byte of snapshots with their signed manifests. A start from
a snapshot checks the manifest, all sizes, and all but the pages of memory.`,
		Example: "  belljar snapshot verify deps:v1",
	}, "verifying", func(ctx context.Context, c *client.Client, ref string) error {
		_, err := c.VerifySnapshot(ctx, ref)
		return err
	})
}

func (a *app) snapshotInspect() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:               "inspect SNAPSHOT...",
		Short:             "show what a snapshot is of",
		Args:              between(1, -1),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, refs []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			list := make([]sandbox.Snapshot, len(refs))
			for i, ref := range refs {
				if list[i], err = c.GetSnapshot(cmd.Context(), ref); err != nil {
					return err
				}
			}
			as := *f
			if !as.machine() {
				as = formatJSON
			}
			if len(list) == 1 {
				return encode(a.out, as, list[0])
			}
			return encode(a.out, as, list)
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) snapshotTag() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "tag SNAPSHOT NAME[:TAG]",
		Short:             "give a snapshot one more name",
		Example:           "  belljar snapshot tag deps:v2 deps:latest --force",
		Args:              between(2, 2),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, argv []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.TagSnapshot(cmd.Context(), argv[0], argv[1], force)
			return err
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "take the name from the snapshot that has it")
	return cmd
}

func (a *app) snapshotUntag() *cobra.Command {
	return &cobra.Command{
		Use:               "untag NAME[:TAG]",
		Short:             "take a name away; the snapshot keeps its ID",
		Args:              between(1, 1),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, argv []string) error {
			c, err := a.daemon(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.UntagSnapshot(cmd.Context(), argv[0], argv[0])
			return err
		},
	}
}

func (a *app) snapshotSave() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "save SNAPSHOT [-o FILE]",
		Short: "write a snapshot as one stream, to be loaded elsewhere",
		Long: `Save writes a snapshot as one stream (tar, compressed with zstd) to a file or to
standard output. Memory can be loaded again by the installation that saved it
only: by another state directory of the same installation key, for instance. One
whose memory knows files of this host, as all memory does that started from the
template host, is refused. Snapshots of files or of a directory go anywhere.`,
		Example:           "  belljar snapshot save deps:v1 -o deps.tar.zst\n  belljar snapshot save files:v1 | ssh other belljar snapshot load --name files:v1 -",
		Args:              between(1, 1),
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if out == "" && terminal.IsTerminal(a.out) {
				return usagef("name a file with -o, or send the output somewhere", "a snapshot is not written to a terminal")
			}
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			c, err := a.daemon(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			body, err := c.SaveSnapshot(ctx, argv[0])
			if err != nil {
				return err
			}
			defer body.Close()
			p := a.progress("saving " + argv[0])
			defer p.end()
			if out == "" {
				_, err = io.Copy(a.out, body)
				return err
			}
			return writeWhole(out, body)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write, instead of standard output")
	return cmd
}

// writeWhole writes a file aside and gives it its name when all of it is there.
func writeWhole(path string, r io.Reader) (err error) {
	f, err := os.CreateTemp(dirOf(path), ".belljar-*")
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the file cannot be written: %w", err).WithField("output", path)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = io.Copy(f, r); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func dirOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i+1]
	}
	return "."
}

func (a *app) snapshotLoad() *cobra.Command {
	var f *format
	var name string
	cmd := &cobra.Command{
		Use:   "load [--name NAME[:TAG]] FILE|-",
		Short: "make a snapshot of what save wrote",
		Long: `Load makes a snapshot of what belljar snapshot save wrote, - being standard input,
and prints its ID. Every byte is checked against the signed manifest first.`,
		Example: "  belljar snapshot load --name deps:v1 deps.tar.zst",
		Args:    between(1, 1),
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			in := a.in
			if argv[0] != "-" {
				file, err := os.Open(argv[0])
				if err != nil {
					return sandbox.Errorf(sandbox.NotFound, "the archive cannot be read: %w", err).WithField("archive", argv[0])
				}
				defer file.Close()
				if info, err := file.Stat(); err == nil && info.IsDir() {
					return sandbox.Errorf(sandbox.Invalid, "this is a directory").WithField("archive", argv[0]).
						WithHint("name the file that `belljar snapshot save` wrote")
				}
				in = file
			}
			c, err := a.daemon(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			p := a.progress("loading " + argv[0])
			s, err := c.LoadSnapshot(ctx, in, name)
			p.end()
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, s)
			}
			_, err = fmt.Fprintln(a.out, s.ID)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name to give it")
	f = a.formatFlag(cmd)
	return cmd
}

// completeSnapshots offers the names of snapshots, when a daemon runs.
func (a *app) completeSnapshots(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.runningDaemon(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	list, err := c.Snapshots(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, s := range list {
		if len(s.Names) == 0 {
			out = append(out, string(s.ID))
		}
		out = append(out, s.Names...)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
