package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// result is what run and exec print under -o json: everything a program that
// drives Belljar has to know about one command.
type result struct {
	Sandbox   sandbox.ID            `json:"sandbox"`
	Name      string                `json:"name,omitempty"`
	Template  string                `json:"template"`
	Argv      []string              `json:"argv"`
	Exit      exitResult            `json:"exit"`
	Isolation sandbox.Isolation     `json:"isolation"`
	Limits    []sandbox.LimitStatus `json:"limits"`
	CPUsSeen  int                   `json:"cpus_seen,omitempty"`
	Hits      []sandbox.Event       `json:"limit_events,omitempty"` // limits that were hit
	Stdout    outputResult          `json:"stdout"`
	Stderr    outputResult          `json:"stderr"`
	Workspace []mountReport         `json:"workspace,omitempty"` // what to look at on the mounts that could be written
	Timing    timing                `json:"timing"`
	Timeline  []sandbox.Step        `json:"timeline,omitempty"`
}

// exitResult is a sandbox.Exit with the status that we exit with.
type exitResult struct {
	Status int `json:"status"`
	sandbox.Exit
}

// timing tells where the time of one command went, in milliseconds.
type timing struct {
	CLI    float64 `json:"cli_ms"`              // our own work before and between the rest
	Keeper float64 `json:"keeper_ms,omitempty"` // until the keeper answered
	Boot   float64 `json:"boot_ms,omitempty"`   // the boundary's own start, the kernel inside
	Start  float64 `json:"start_ms,omitempty"`  // until the guest's first instruction
	Guest  float64 `json:"guest_ms"`            // until the guest had answered and begun the command
	Exec   float64 `json:"exec_ms"`             // the command itself, to its exit
	End    float64 `json:"end_ms"`              // until nothing of the sandbox was left
	Total  float64 `json:"total_ms"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// print writes the split for people.
func (t timing) print(w io.Writer, steps []sandbox.Step) error {
	tab := newTable("PART", "MS")
	for _, p := range []struct {
		name string
		v    float64
	}{{"cli", t.CLI}, {"keeper", t.Keeper}, {"boot", t.Boot}, {"start", t.Start}, {"guest", t.Guest}, {"exec", t.Exec}, {"end", t.End}, {"total", t.Total}} {
		tab.add(p.name, fmt.Sprintf("%.1f", p.v))
	}
	if err := tab.write(w); err != nil || len(steps) == 0 {
		return err
	}
	fmt.Fprintln(w)
	tab = newTable("STEP", "AT", "TOOK")
	for _, s := range steps {
		tab.add(s.Name, fmt.Sprintf("%.1f", ms(s.Start)), fmt.Sprintf("%.1f", ms(s.Took)))
	}
	return tab.write(w)
}
