package measure

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	tests := []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 100}, 3.5},
	}
	for _, tt := range tests {
		if got := Median(tt.in); got != tt.want {
			t.Errorf("Median(%v): got %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestInTurn(t *testing.T) {
	var order []string
	side := func(name string, took time.Duration) Side {
		return Side{name, func(context.Context) (time.Duration, error) {
			order = append(order, name)
			return took, nil
		}}
	}
	times, err := InTurn(t.Context(), 4, side("a", 2), side("b", 8))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, ""), "abbaabbaabba"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	if len(times[0]) != 4 || len(times[1]) != 4 {
		t.Errorf("got %d and %d times, want 4 each: warm-up must not count", len(times[0]), len(times[1]))
	}
	if got := Ratio(times[0], times[1]); got != 0.25 {
		t.Errorf("ratio: got %v, want 0.25", got)
	}
	failing := Timed("c", func(context.Context) error { return io.ErrUnexpectedEOF })
	if _, err := InTurn(t.Context(), 1, failing); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "c") {
		t.Errorf("got %v, want the side's error with its name", err)
	}
}

func TestQuantile(t *testing.T) {
	tests := []struct {
		in   []float64
		q    float64
		want float64
	}{
		{[]float64{3}, 0.99, 3},
		{[]float64{4, 1, 3, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.99, 4},
		{[]float64{4, 1, 3, 2}, 0, 1},
		{[]float64{4, 1, 3, 2}, 1, 4},
	}
	for _, tt := range tests {
		if got := Quantile(tt.in, tt.q); got != tt.want {
			t.Errorf("Quantile(%v, %v): got %v, want %v", tt.in, tt.q, got, tt.want)
		}
	}
}
