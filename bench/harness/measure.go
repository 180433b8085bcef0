package harness

import (
	"context"
	"time"

	"github.com/belljar-sh/belljar/internal/measure"
)

// Rounds is how often each side of a comparison is measured.
const Rounds = 20

// Side is one of several things that are compared.
type Side = measure.Side

// Median is [measure.Median].
func Median[T ~int64 | ~float64](values []T) T { return measure.Median(values) }

// Milliseconds is d as a number.
func Milliseconds(d time.Duration) float64 { return measure.Milliseconds(d) }

// Timed makes a side of a function whose whole time counts.
func Timed(name string, do func(ctx context.Context) error) Side { return measure.Timed(name, do) }

// InTurn is [measure.InTurn].
func InTurn(ctx context.Context, rounds int, sides ...Side) ([][]time.Duration, error) {
	return measure.InTurn(ctx, rounds, sides...)
}

// Ratio is the ratio of two medians.
func Ratio(a, b []time.Duration) float64 { return measure.Ratio(a, b) }
