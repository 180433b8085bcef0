package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/template"
)

// runTrue compares `belljar run -- /bin/true` on the host template with a
// `runsc run` of the same root, binds, overlay, cgroups and argv, and reports
// where our time went.
func (e *env) runTrue(ctx context.Context, r *harness.Result) error {
	if err := e.needRunsc(ctx); err != nil {
		return err
	}
	root, _, err := template.New(e.state+"/templates", template.Options{}).Resolve(ctx, "host")
	if err != nil {
		return err
	}
	split := map[string][]float64{}
	round := 0
	bare := func(ctx context.Context) (time.Duration, error) {
		round++
		return e.runBare(ctx, root, "bare-run-"+strconv.Itoa(round))
	}
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Side{Name: "runsc run", Do: bare},
		harness.Timed("belljar run", func(ctx context.Context) error { return runQuiet(e.belljar(ctx, "run", "--", "/bin/true")) }),
	)
	if err != nil {
		return err
	}
	for range e.rounds {
		if err := e.runSplit(ctx, split); err != nil {
			return err
		}
	}
	r.AddTimes("runsc run -- /bin/true", times[0])
	r.AddTimes("belljar run -- /bin/true", times[1])
	for _, step := range splitOrder {
		if len(split[step]) > 0 {
			r.Add("of which "+strings.TrimSuffix(step, "_ms")+", median", harness.Median(split[step]), "ms")
		}
	}
	r.AtMost("belljar run / runsc run", harness.Ratio(times[1], times[0]), 1, "times")
	return nil
}

// runBare runs a bundle once and removes what runsc leaves of it.
func (e *env) runBare(ctx context.Context, root driver.Root, name string) (time.Duration, error) {
	b := newBundle(name, root.Path, "/bin/true")
	for _, bind := range root.Binds {
		b.Mounts = append(b.Mounts, bundleMount{
			Destination: bind.Target, Type: "bind", Source: bind.Source, Options: []string{"rbind", "ro"},
		})
	}
	dir, err := b.write(e.dir, name)
	if err != nil {
		return 0, err
	}
	cmd := e.runsc(ctx, dir, name)
	start := time.Now()
	err = runQuiet(cmd)
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, os.RemoveAll(dir)
}

// splitOrder are the parts in which belljar tells its time.
var splitOrder = []string{"cli_ms", "keeper_ms", "boot_ms", "start_ms", "guest_ms", "exec_ms", "end_ms", "total_ms"}

// runSplit runs once and adds the parts of the time that the result tells.
func (e *env) runSplit(ctx context.Context, into map[string][]float64) error {
	out, err := e.belljar(ctx, "run", "-o", "json", "--", "/bin/true").Output()
	if err != nil {
		return fmt.Errorf("run -o json: %w", err)
	}
	var res struct {
		Timing map[string]float64 `json:"timing"`
	}
	if err := json.Unmarshal(out, &res); err != nil {
		return fmt.Errorf("run -o json: %w", err)
	}
	for k, v := range res.Timing {
		into[k] = append(into[k], v)
	}
	return nil
}
