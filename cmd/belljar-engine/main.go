// Command belljar-engine is the part of Belljar that parents sandboxes: keeper,
// reaper and probe, and gVisor's own roles, which are chosen by argv[0].
//
// It must be static: its roles run where no shared library can be found.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/roles"
)

func main() {
	played, err := roles.Run(os.Args)
	if !played {
		if err = static(); err == nil {
			err = run(context.Background(), os.Args[1:], os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "belljar-engine:", err)
		os.Exit(125)
	}
}
