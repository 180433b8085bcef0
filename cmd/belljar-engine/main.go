// Command belljar-engine is the part of Belljar that parents sandboxes: keeper,
// reaper and probe, and gVisor's own roles, which are chosen by argv[0].
package main

import (
	"fmt"
	"os"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/roles"
)

func main() {
	played, err := roles.Run(os.Args)
	if !played {
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "belljar-engine:", err)
		os.Exit(125)
	}
}
