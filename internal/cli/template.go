package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/template"
)

func (a *app) templateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "manage what sandboxes start from",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, argv[0])
		},
	}
	cmd.AddCommand(a.templateLs(), a.templateImport(), a.templateBuild(), a.templateSet(), a.templateRm())
	return cmd
}

func (a *app) templateSet() *cobra.Command {
	var start, ready string
	var f *format
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "give a template a command that runs in every sandbox from the beginning",
		Long: `Set gives a template a start command. It is run once, in a sandbox of its own; when
the ready command succeeds that sandbox's memory is kept, and every sandbox of the
template begins there: with a server that answers, for instance, or a program that
has loaded what it needs. Without flags both commands are taken away.`,
		Example: "  belljar template set web --start-command 'python3 -m http.server 8000' --ready-command 'curl -sf localhost:8000'",
		Args:    between(1, 1),
		RunE: func(cmd *cobra.Command, argv []string) error {
			s, err := a.templates()
			if err != nil {
				return err
			}
			d, err := s.SetCommands(cmd.Context(), argv[0], start, ready)
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, d)
			}
			_, err = fmt.Fprintln(a.out, d.Name)
			return err
		},
	}
	cmd.Flags().StringVar(&start, "start-command", "", "shell command that runs in every sandbox of the template")
	cmd.Flags().StringVar(&ready, "ready-command", "", "shell command that succeeds once the start command has started")
	f = a.formatFlag(cmd)
	return cmd
}

// templates returns this user's store, its directory made.
func (a *app) templates() (*template.Store, error) {
	dirs, err := userDirs()
	if err == nil {
		err = dirs.MakeState()
	}
	if err != nil {
		return nil, err
	}
	return template.New(dirs.Templates(), template.Options{}), nil
}

func (a *app) templateLs() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list templates",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.templates()
			if err != nil {
				return err
			}
			list, err := s.List(cmd.Context())
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, list)
			}
			t := newTable("NAME", "KIND", "SIZE", "SUDO", "MADE")
			for _, e := range list {
				size, made, sudo := "-", "-", "no"
				if e.SizeBytes > 0 {
					size = formatSize(e.SizeBytes)
				}
				if !e.CreatedAt.IsZero() {
					made = age(time.Since(e.CreatedAt)) + " ago"
				}
				if e.Setuid {
					sudo = "yes"
				}
				t.add(e.Name, e.Kind, size, sudo, made)
			}
			return t.write(a.out)
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) templateImport() *cobra.Command {
	var o template.ImportOptions
	var f *format
	cmd := &cobra.Command{
		Use:   "import NAME PATH|-",
		Short: "make a template of a root directory or tar archive",
		Long: `Import makes a template of a directory or of a tar archive (plain, gzip or
zstd), - being standard input. It is unpacked by this program with your rights
and refused as a whole when it holds anything that does not belong in a root
file system. Run by root owners and set-id bits are kept, otherwise everything
seems to belong to root inside.`,
		Example: "  belljar template import alpine alpine-minirootfs.tar.gz\n  docker export $(docker create debian) | belljar template import debian -",
		Args:    between(2, 2),
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			s, err := a.templates()
			if err != nil {
				return err
			}
			p := a.progress("importing " + argv[0])
			o.Progress = func(g archive.Progress) {
				p.set(fmt.Sprintf("%d entries, %s", g.Entries, formatSize(g.Bytes)))
			}
			var d *template.Details
			if argv[1] == "-" {
				d, err = s.ImportStream(ctx, argv[0], a.in, o)
			} else {
				d, err = s.Import(ctx, argv[0], argv[1], o)
			}
			p.end()
			return a.made(ctx, d, err, *f)
		},
	}
	cmd.Flags().BoolVar(&o.SkipDevices, "skip-devices", false, "leave device nodes out instead of refusing the archive")
	cmd.Flags().BoolVar(&o.NoSetuid, "no-setuid", false, "drop set-id bits: sudo will not work inside")
	f = a.formatFlag(cmd)
	return cmd
}

func (a *app) templateBuild() *cobra.Command {
	var o template.BuildOptions
	var verbose bool
	var f *format
	cmd := &cobra.Command{
		Use:   "build debian",
		Short: "make a template of Debian packages",
		Long: `Build makes a template from a recipe. The recipe debian has what agents expect of
a machine: python, git, curl, sudo, process and network tools, and a user "user".
It runs mmdebstrap, and package scripts run in namespaces of their own.`,
		Example:   "  belljar template build debian\n  belljar template build debian --name web --package nodejs --package npm",
		Args:      between(1, 1),
		ValidArgs: []string{template.RecipeDebian},
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			s, err := a.templates()
			if err != nil {
				return err
			}
			p := a.longProgress("building " + argv[0])
			o.Log = func(line string) {
				p.set(line)
				if verbose {
					fmt.Fprintln(a.err, terminal.Escape(line))
				}
			}
			o.Progress = func(g archive.Progress) {
				p.set(fmt.Sprintf("%d entries, %s", g.Entries, formatSize(g.Bytes)))
			}
			d, err := s.Build(ctx, argv[0], o)
			p.end()
			return a.made(ctx, d, err, *f)
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "name of the template (default: the recipe's)")
	cmd.Flags().StringVar(&o.Suite, "suite", "", "Debian suite (default: the host's, else stable)")
	cmd.Flags().StringArrayVar(&o.Packages, "package", nil, "one more package")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "print what the build prints")
	f = a.formatFlag(cmd)
	return cmd
}

// made prints a template that was made.
func (a *app) made(ctx context.Context, d *template.Details, err error, f format) error {
	if status, ok := interrupted(ctx); ok {
		return status
	}
	if err != nil {
		return err
	}
	if d.Kind != template.KindBuilt { // a built system has the usual devices, which are left out
		for _, s := range d.Skips {
			a.warn("%s: %s", s.Name, s.Reason)
		}
		if n := d.Skipped - int64(len(d.Skips)); n > 0 {
			a.warn("and %d more", n)
		}
	}
	if f.machine() {
		return encode(a.out, f, d)
	}
	_, err = fmt.Fprintf(a.out, "%s: %d entries, %s\n", d.Name, d.Entries, formatSize(d.SizeBytes))
	return err
}

func (a *app) templateRm() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "remove templates",
		Long:    "Rm removes templates. One that a sandbox uses is refused.",
		Args:    between(1, -1),
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := a.templates()
			if err != nil {
				return err
			}
			var failed error
			for _, n := range names {
				if err := s.Remove(cmd.Context(), n); err != nil {
					failed = exitStatus(a.report(err))
					continue
				}
				fmt.Fprintln(a.out, n)
			}
			return failed
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			var out []string
			if s, err := a.templates(); err == nil {
				list, _ := s.List(cmd.Context()) // nothing to offer is no error
				for _, e := range list {
					out = append(out, e.Name)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
