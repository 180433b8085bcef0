package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/workspace"
)

// mountReport tells what a run has left on one mount that the host later
// executes or trusts.
type mountReport struct {
	Source string `json:"source"` // as it was given
	workspace.Report
}

// scanTime bounds the look at one mount.
const scanTime = time.Minute

// guard remembers how the mounts that may be written stood before a run.
type guard struct {
	vols  []*volume
	since []workspace.Baseline
}

// newGuard looks at the mounts before a run. Files need no look: a sandbox can
// only change what is in them.
func newGuard(ctx context.Context, vols []*volume) (*guard, error) {
	g := &guard{}
	for _, v := range vols {
		if v.readOnly || !v.dir {
			continue
		}
		b, err := workspace.Take(ctx, v.file)
		if err != nil {
			return nil, fmt.Errorf("-v %s: how it stands cannot be noted: %w", v.source, err)
		}
		g.vols, g.since = append(g.vols, v), append(g.since, b)
	}
	return g, nil
}

// reports looks at the mounts again. What could not be looked at is said in
// the report: it is no reason to lose the result of the run.
func (g *guard) reports(ctx context.Context) []mountReport {
	var out []mountReport
	for i, v := range g.vols {
		ctx, cancel := context.WithTimeout(ctx, scanTime)
		r, err := workspace.Scan(ctx, v.file, g.since[i])
		cancel()
		if err != nil {
			r.Incomplete = err.Error()
		}
		if r.Findings == nil {
			r.Findings = []workspace.Finding{}
		}
		out = append(out, mountReport{v.source, r})
	}
	return out
}

// tell prints the list, if there is anything on it.
func (a *app) tell(r *mountReport) {
	if len(r.Findings) > 0 {
		a.warn("look at these in %s before you go on there:", r.Source)
	}
	for _, f := range r.Findings {
		a.detail(f.String())
	}
	if r.More > 0 {
		a.detail(fmt.Sprintf("and %d more that are left out, none of a more dangerous kind than these", r.More))
	}
	if r.Incomplete != "" {
		a.warn("not all of %s was looked at: %s", r.Source, r.Incomplete)
	}
}

// detail prints a line that belongs to the last warning.
func (a *app) detail(line string) {
	if a.format.machine() {
		a.warn("%s", line)
		return
	}
	fmt.Fprintf(a.err, "  %s\n", terminal.Escape(line))
}

func (a *app) tellAll(found []mountReport) {
	for i := range found {
		a.tell(&found[i])
	}
}
