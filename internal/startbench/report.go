package startbench

import (
	"time"

	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/internal/measure"
)

// Report is what a run found.
type Report struct {
	Machine  host.System `json:"machine"`
	Template string      `json:"template"`
	Rounds   int         `json:"rounds"`
	// Reference is the name of the start that the others are compared with;
	// empty when neither runsc nor bwrap was there.
	Reference string  `json:"reference,omitempty"`
	Starts    []Start `json:"starts"`
	// Missing are those that could not be measured.
	Missing []Missing `json:"missing,omitempty"`
}

// Start is one way to a sandbox, with times in milliseconds.
type Start struct {
	Name   string  `json:"name"`
	What   string  `json:"what"`   // from when to when
	Ours   bool    `json:"ours"`   // Belljar's, else another program's
	Median float64 `json:"median"` // in milliseconds, as the next three
	P99    float64 `json:"p99"`
	Least  float64 `json:"min"`
	// Ratio is the median by that of the reference, 0 without one.
	Ratio float64   `json:"ratio,omitempty"`
	Times []float64 `json:"times"` // in milliseconds, by round
}

// Missing is a start that was not measured, and why.
type Missing struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// references are the starts that others are compared with, best first.
var references = []string{nameRunsc, nameBwrap}

func newStart(name, what string, ours bool, times []time.Duration) Start {
	s := Start{
		Name: name, What: what, Ours: ours,
		Median: measure.Milliseconds(measure.Median(times)),
		P99:    measure.Milliseconds(measure.Quantile(times, 0.99)),
		Least:  measure.Milliseconds(measure.Quantile(times, 0)),
	}
	for _, t := range times {
		s.Times = append(s.Times, measure.Milliseconds(t))
	}
	return s
}

// compare chooses the reference and fills in ratios.
func (r *Report) compare() {
	for _, name := range references {
		for _, s := range r.Starts {
			if s.Name != name {
				continue
			}
			r.Reference = name
			for i := range r.Starts {
				r.Starts[i].Ratio = r.Starts[i].Median / s.Median
			}
			return
		}
	}
}
