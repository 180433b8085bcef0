package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/host"
)

// userDirs are the directories of the calling user.
func userDirs() (config.Dirs, error) { return config.User() }

func (a *app) doctorCommand() *cobra.Command {
	var f *format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "tell what each boundary needs and whether this machine has it",
		Long: `Doctor asks this machine what it offers and tells, for each boundary, what it
needs and whether that is there, with the reason and with what to do. The exit
code is 0 when the default boundary works here and 1 when it does not.`,
		Example: "  belljar doctor\n  belljar doctor -o json",
		Args:    between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := host.Options{Build: build.ID()}
			dirs, err := userDirs()
			if err != nil {
				a.warn("%v", err)
			} else {
				o.StateDir = dirs.State
			}
			r := host.Probe(cmd.Context(), o)
			if f.machine() {
				err = encode(a.out, *f, r)
			} else {
				err = printDoctor(a.out, &r)
			}
			if err == nil && !r.Works {
				return exitStatus(1)
			}
			return err
		},
	}
	f = a.formatFlag(cmd)
	return cmd
}

func printDoctor(w io.Writer, r *host.Report) error {
	s := r.System
	fmt.Fprintf(w, "Linux %s, %s, %d CPUs, %s of memory, user %d, build %s\n\n",
		s.Kernel, s.Architecture, s.CPUs, formatSize(s.MemoryBytes), s.UID, s.Build)
	if err := checkTable("THIS MACHINE", r.Checks).write(w); err != nil {
		return err
	}
	for _, b := range r.Boundaries {
		name := string(b.Boundary)
		if b.Boundary == r.Default {
			name += ", the default"
		}
		fmt.Fprintf(w, "\nboundary %s: %s%s\n", name, b.Available, terminal.Escape(because(b.Reason)))
		t := checkTable("", b.Checks)
		t.head = nil
		if err := t.write(w); err != nil {
			return err
		}
	}
	if !r.Works {
		fmt.Fprintf(w, "\n%s does not work here: `belljar run` will refuse.\n", r.Default)
		return nil
	}
	fmt.Fprintf(w, "\n%s works here.\n", r.Default)
	return nil
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func checkTable(title string, checks []driver.Check) *table {
	t := newTable(title, "", "")
	for _, c := range checks {
		verdict := string(c.Verdict)
		if c.Needed && c.Verdict == driver.No {
			verdict = "no, needed"
		}
		t.add("  "+c.Name, verdict, c.Reason)
		if c.Verdict != driver.Yes && c.Remedy != "" {
			t.add("", "", "-> "+c.Remedy)
		}
	}
	return t
}
