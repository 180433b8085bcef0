package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
)

func (a *app) forkCommand() *cobra.Command {
	var f *format
	var count int
	var name string
	cmd := &cobra.Command{
		Use:   "fork SANDBOX",
		Short: "make copies of a sandbox as it is now",
		Long: `Fork makes copies of a sandbox as it is now and prints their IDs. Memory, processes
and files are those of the source; identity, token, host name and what the kernel
draws by chance are each copy's own. The source goes on: it stands still while
its memory is written. When one copy fails, none is left.`,
		Example:           "  belljar fork work\n  belljar fork work -n 8 --name try",
		Args:              between(1, 1),
		ValidArgsFunction: a.firstSandbox,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if count < 1 {
				return usagef("-n is how many copies are made", "-n %d: at least one copy is made", count)
			}
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			c, err := a.mustRun(ctx, argv[0])
			if err != nil {
				return err
			}
			defer c.Close()
			progress := a.progress("forking " + argv[0])
			made, stopped, err := c.Fork(ctx, argv[0], count, name)
			progress.end()
			if err != nil {
				return err
			}
			if f.machine() {
				return encode(a.out, *f, client.Forked{Sandboxes: made, Stopped: stopped})
			}
			for _, sb := range made {
				if _, err := fmt.Fprintln(a.out, sb.ID); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVarP(&count, "count", "n", 1, "how many copies")
	cmd.Flags().StringVar(&name, "name", "", "name of the copy; several are called NAME-1 and so on")
	f = a.formatFlag(cmd)
	return cmd
}
