// Command runsc is gVisor's own command line with the few commands that the
// benchmarks compare with: the same gVisor as belljar-engine's, without the
// sidecar programs that its main command table embeds.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

func main() {
	const user, internal = "", "internal use only"
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Create):     user,
		new(cmd.Delete):     user,
		new(cmd.Exec):       user,
		new(cmd.Kill):       user,
		new(cmd.List):       user,
		new(cmd.Run):        user,
		new(cmd.Start):      user,
		new(cmd.State):      user,
		new(cmd.Wait):       user,
		new(cmd.Checkpoint): user,
		new(cmd.Restore):    user,

		new(sentrycmd.Boot):   internal,
		new(cmd.Gofer):        internal,
		new(sentrycmd.Umount): internal,
	}, nil)
}
