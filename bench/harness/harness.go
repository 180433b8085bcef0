package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// ErrUnavailable marks a case that this host cannot run; the message says
// which probe said no.
var ErrUnavailable = errors.New("not to be had on this host")

// Case is one benchmark.
type Case struct {
	Name    string // as on the command line
	Summary string
	// Run measures and adds to r. An error is a failure of the benchmark
	// itself; a promise that does not hold is not an error.
	Run func(ctx context.Context, r *Result) error
}

// Result is what one case found.
type Result struct {
	Name     string    `json:"name"`
	Figures  []Figure  `json:"figures"`
	Promises []Promise `json:"promises"`
	Error    string    `json:"error,omitempty"`
	Skipped  string    `json:"skipped,omitempty"`
	Took     float64   `json:"took_seconds"`

	progress io.Writer
}

// Figure is one measured value.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Promise compares a figure with its bound.
type Promise struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Bound float64 `json:"bound"`
	// AtLeast tells that Value must not be below Bound; otherwise it must not
	// be above.
	AtLeast bool `json:"at_least"`
	Kept    bool `json:"kept"`
}

// Add records a figure.
func (r *Result) Add(name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{name, value, unit})
}

// AddTimes records median, least and greatest of times, in milliseconds.
func (r *Result) AddTimes(name string, times []time.Duration) {
	r.Add(name+", median", Milliseconds(Median(times)), "ms")
	r.Add(name+", least", Milliseconds(slices.Min(times)), "ms")
	r.Add(name+", greatest", Milliseconds(slices.Max(times)), "ms")
}

// AtMost records a promise that value does not exceed bound.
func (r *Result) AtMost(name string, value, bound float64, unit string) {
	r.Promises = append(r.Promises, Promise{Name: name, Value: value, Unit: unit, Bound: bound, Kept: value <= bound})
}

// AtLeast records a promise that value is not below bound.
func (r *Result) AtLeast(name string, value, bound float64, unit string) {
	r.Promises = append(r.Promises, Promise{Name: name, Value: value, Unit: unit, Bound: bound, AtLeast: true, Kept: value >= bound})
}

// Logf tells people how far a long case is. It goes to standard error, never
// into the result.
func (r *Result) Logf(format string, args ...any) {
	fmt.Fprintf(r.progress, "%s: %s\n", r.Name, fmt.Sprintf(format, args...))
}

// Kept reports whether the case ran and all its promises hold. A case that
// this host cannot run has kept nothing and broken nothing.
func (r *Result) Kept() bool {
	return r.Error == "" && !slices.ContainsFunc(r.Promises, func(p Promise) bool { return !p.Kept })
}

// Run runs cases one after another and returns their results. A case that
// fails does not keep the next from running.
func Run(ctx context.Context, cases []Case, progress io.Writer) []*Result {
	var out []*Result
	for _, c := range cases {
		r := &Result{Name: c.Name, progress: progress}
		r.Logf("%s", c.Summary)
		start := time.Now()
		err := c.Run(ctx, r)
		r.Took = time.Since(start).Seconds()
		switch {
		case errors.Is(err, ErrUnavailable):
			r.Skipped = err.Error()
		case err != nil:
			r.Error = err.Error()
		}
		out = append(out, r)
		if ctx.Err() != nil {
			break
		}
	}
	return out
}

// WriteJSON writes results for programs.
func WriteJSON(w io.Writer, results []*Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}

// WriteTable writes results for people.
func WriteTable(w io.Writer, results []*Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t\t\t(%.0f s)\n", r.Name, r.Took)
		for _, f := range r.Figures {
			fmt.Fprintf(tw, "  %s\t%s %s\t\n", f.Name, number(f.Value), f.Unit)
		}
		for _, p := range r.Promises {
			fmt.Fprintf(tw, "  %s\t%s %s\t%s\n", p.Name, number(p.Value), p.Unit, p.verdict())
		}
		if r.Error != "" {
			fmt.Fprintf(tw, "  error\t%s\t\n", r.Error)
		}
		if r.Skipped != "" {
			fmt.Fprintf(tw, "  skipped\t%s\t\n", r.Skipped)
		}
	}
	return tw.Flush()
}

func (p Promise) verdict() string {
	word, rel := "kept", "at most"
	if p.AtLeast {
		rel = "at least"
	}
	if !p.Kept {
		word = "BROKEN"
	}
	return fmt.Sprintf("%s: %s %s", word, rel, number(p.Bound))
}

// number prints three significant digits, and whole numbers as such.
func number(v float64) string {
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d", int64(v))
	}
	if v >= 100 || v <= -100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
