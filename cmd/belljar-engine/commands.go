package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/gvisor"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/roles"
	"github.com/belljar-sh/belljar/internal/keeper"
)

const usage = `usage: belljar-engine keeper|reap|probe|version

The part of Belljar that parents sandboxes. It is started by belljar.`

// run runs the subcommand that args name.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%s", usage)
	}
	switch name, rest := args[0], args[1:]; name {
	case "version":
		_, err := fmt.Fprintln(out, "belljar-engine", build.ID())
		return err
	case "probe":
		return probe(ctx, out)
	case "keeper":
		// A keeper carries bytes between processes that need the processors
		// themselves: handing a goroutine to another thread costs more than it
		// gains.
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
		roles.DeferGC()
		return keeper.Command(ctx, rest, drivers)
	case "reap":
		return keeper.ReapCommand(ctx, rest, drivers)
	default:
		return fmt.Errorf("unknown subcommand %q\n%s", name, usage)
	}
}

// drivers are the drivers of this program.
func drivers() ([]driver.Driver, error) {
	g, err := gvisor.New(gvisor.Options{DebugDir: os.Getenv("BELLJAR_GVISOR_DEBUG")})
	if err != nil {
		return nil, err
	}
	return []driver.Driver{g}, nil
}

// probe writes what each driver finds on this host as JSON.
func probe(ctx context.Context, out io.Writer) error {
	all, err := drivers()
	if err != nil {
		return err
	}
	var reports []driver.Report
	for _, d := range all {
		reports = append(reports, d.Probe(ctx))
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(reports)
}
