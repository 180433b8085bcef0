// Package measure compares things that take time: several sides in turn within
// one run, and medians and quantiles of what came out. The benchmarks of the
// repository and `belljar bench` share it.
package measure

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Median returns the middle of values; of an even number the mean of the two
// in the middle. It panics on none.
func Median[T ~int64 | ~float64](values []T) T {
	s := slices.Clone(values)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// Quantile returns the least of values that is not exceeded by a share q of them:
// of few values the greatest stands for the rest. It panics on none.
func Quantile[T ~int64 | ~float64](values []T, q float64) T {
	s := slices.Clone(values)
	slices.Sort(s)
	n := int(math.Ceil(q * float64(len(s))))
	return s[min(max(n, 1), len(s))-1]
}

// Milliseconds is d as a number.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Side is one of several things that are compared.
type Side struct {
	Name string
	// Do does it once and returns how long it took, so that a side can leave
	// out what it prepares.
	Do func(ctx context.Context) (time.Duration, error)
}

// Timed makes a side of a function whose whole time counts.
func Timed(name string, do func(ctx context.Context) error) Side {
	return Side{name, func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := do(ctx)
		return time.Since(start), err
	}}
}

// WarmUp is how many rounds of a comparison do not count.
const WarmUp = 2

// InTurn measures all sides rounds times, in turn and in alternating order, so
// that a change of the machine's load hits them alike, after [WarmUp] rounds
// that do not count. It returns the times of each side in the order of sides.
func InTurn(ctx context.Context, rounds int, sides ...Side) ([][]time.Duration, error) {
	out := make([][]time.Duration, len(sides))
	for round := range WarmUp + rounds {
		for i := range sides {
			if round%2 == 1 {
				i = len(sides) - 1 - i
			}
			took, err := sides[i].Do(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", sides[i].Name, round, err)
			}
			if round >= WarmUp {
				out[i] = append(out[i], took)
			}
		}
	}
	return out, nil
}

// Ratio is the ratio of two medians.
func Ratio(a, b []time.Duration) float64 {
	return float64(Median(a)) / float64(Median(b))
}
