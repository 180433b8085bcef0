package sandbox

import (
	"errors"
	"math"
	"testing"
)

func TestLimitsValidate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    Limits
		field string // "": valid
		value string
	}{
		{"nothing asked for", Limits{}, "", ""},
		{"defaults", DefaultLimits(8), "", ""},
		{"the least", Limits{MinCPUs, MinMemoryBytes, MinProcesses, MinDiskBytes, MinOpenFiles, MinOutputBytes}, "", ""},
		{"the most", Limits{MaxCPUs, MaxBytes, MaxProcesses, MaxBytes, MaxOpenFiles, MaxBytes}, "", ""},
		{"cpus below", Limits{CPUs: 0.01}, "cpus", "0.01"},
		{"cpus above", Limits{CPUs: 4097}, "cpus", "4097"},
		{"cpus infinite", Limits{CPUs: math.Inf(1)}, "cpus", "+Inf"},
		{"cpus no number", Limits{CPUs: math.NaN()}, "cpus", "NaN"},
		{"memory below", Limits{MemoryBytes: 1024}, "memory", "1024"},
		{"memory above", Limits{MemoryBytes: 1<<50 + 1}, "memory", "1125899906842625"},
		{"pids negative", Limits{Processes: -1}, "pids", "-1"},
		{"pids above", Limits{Processes: 99999999999}, "pids", "99999999999"},
		{"disk above", Limits{DiskBytes: math.MaxInt64}, "disk", "9223372036854775807"},
		{"open files above", Limits{OpenFiles: 1<<20 + 1}, "open-files", "1048577"},
		{"output above", Limits{OutputBytes: 1 << 51}, "output-limit", "2251799813685248"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.in.Validate()
			if tc.field == "" {
				if err != nil {
					t.Fatalf("Validate: %v", err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || e.Kind != Invalid || e.Field != tc.field || e.Value != tc.value || e.Hint == "" {
				t.Fatalf("Validate = %#v, want an invalid %s %q with a hint", err, tc.field, tc.value)
			}
		})
	}
}
