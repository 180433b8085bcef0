package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

const engineTimeout = 10 * time.Second

// need is one thing that a boundary wants of the host: any of these checks
// will do.
type need struct {
	any      []string
	optional bool
}

// planned lists the boundaries that Belljar does not have yet and what each
// would need, so that a reader of the report can judge the machine.
var planned = []struct {
	boundary sandbox.Boundary
	needs    []need
}{
	{sandbox.Process, []need{{any: []string{CheckUserNS}}, {any: []string{CheckSeccomp}}, {any: []string{CheckLandlock}}, {any: []string{CheckTUN}, optional: true}}},
	{sandbox.Container, []need{{any: []string{CheckRunc, CheckCrun}}, {any: []string{CheckCgroupMemory}}, {any: []string{CheckUserNS}}}},
	{sandbox.MicroVM, []need{{any: []string{CheckKVM}}, {any: []string{CheckFirecracker, CheckQEMU}}}},
	{sandbox.Isolate, []need{{any: []string{CheckNode}}, {any: []string{CheckUserNS}}}},
	{sandbox.Wasm, []need{{any: []string{CheckSeccomp}, optional: true}}},
}

// boundaries reports on every boundary in the order of [sandbox.Boundaries].
func boundaries(ctx context.Context, o Options, checks []driver.Check) []driver.Report {
	byName := map[sandbox.Boundary]driver.Report{}
	for _, p := range planned {
		byName[p.boundary] = plannedReport(p.boundary, p.needs, checks)
	}
	for _, r := range engineReports(ctx, o, checks) {
		byName[r.Boundary] = r
	}
	var out []driver.Report
	for _, b := range sandbox.Boundaries() {
		if r, ok := byName[b]; ok {
			out = append(out, r)
		}
	}
	return out
}

func plannedReport(b sandbox.Boundary, needs []need, checks []driver.Check) driver.Report {
	r := driver.Report{
		Boundary:  b,
		Available: driver.No,
		Reason:    "this version of Belljar does not have this boundary",
	}
	for _, n := range needs {
		c := pick(n.any, checks)
		c.Name = strings.Join(n.any, " or ")
		c.Needed = !n.optional
		r.Checks = append(r.Checks, c)
	}
	return r
}

// pick returns the best answer among the named checks.
func pick(names []string, checks []driver.Check) driver.Check {
	best := find(checks, names[0])
	for _, n := range names[1:] {
		c := find(checks, n)
		if best.Verdict != driver.Yes && (c.Verdict == driver.Yes || best.Verdict == driver.No && c.Verdict == driver.CannotTell) {
			best = c
		}
	}
	return best
}

// engineReports asks the engine, which links the drivers. When it cannot be
// asked, gvisor is reported as unavailable for that reason.
func engineReports(ctx context.Context, o Options, checks []driver.Check) []driver.Report {
	path := filepath.Join(o.dir(), Engine)
	if c := find(checks, CheckEngine); c.Verdict != driver.Yes {
		c.Needed = true
		return []driver.Report{{Boundary: sandbox.GVisor, Available: driver.No, Reason: c.Reason, Checks: []driver.Check{c}}}
	}
	reports, err := askEngine(ctx, path)
	if err != nil {
		return []driver.Report{{
			Boundary: sandbox.GVisor, Available: driver.CannotTell,
			Reason: fmt.Sprintf("%s probe failed: %v", path, err),
		}}
	}
	if c := find(checks, CheckGuest); c.Verdict != driver.Yes {
		c.Needed = true
		for i := range reports {
			reports[i].Available, reports[i].Reason = c.Verdict, c.Reason
			reports[i].Checks = append(reports[i].Checks, c)
		}
	}
	return reports
}

func askEngine(ctx context.Context, path string) ([]driver.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "probe").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			return nil, fmt.Errorf("%w: %s", err, firstLine(exit.Stderr))
		}
		return nil, err
	}
	var reports []driver.Report
	if err := json.Unmarshal(out, &reports); err != nil {
		return nil, fmt.Errorf("its answer is not a list of reports: %w", err)
	}
	if len(reports) == 0 {
		return nil, errors.New("it has no driver")
	}
	return reports, nil
}
