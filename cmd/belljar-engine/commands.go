package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/gvisor"
)

// run runs the subcommand that args name.
func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: belljar-engine keeper|reap|probe|version (it is run by belljar)")
	}
	switch args[0] {
	case "version":
		_, err := fmt.Fprintln(os.Stdout, build.ID())
		return err
	case "probe":
		return probe(context.Background(), os.Stdout)
	}
	return fmt.Errorf("unknown subcommand %q", args[0])
}

// drivers are the drivers of this program.
func drivers() ([]driver.Driver, error) {
	g, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return nil, err
	}
	return []driver.Driver{g}, nil
}

// probe writes what each driver finds on this host as JSON.
func probe(ctx context.Context, w io.Writer) error {
	all, err := drivers()
	if err != nil {
		return err
	}
	var reports []driver.Report
	for _, d := range all {
		reports = append(reports, d.Probe(ctx))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(reports)
}
