package host

import (
	"context"
	"runtime"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Options tells where to look. The zero value looks beside the running
// program and at the root of the file system.
type Options struct {
	// Dir holds belljar-engine and belljar-guest; "" is the directory of the
	// running program.
	Dir string
	// StateDir is where templates and logs are kept; its file system is asked
	// for free space. "" skips the question.
	StateDir string
	// Build is the build ID that the other programs must have.
	Build string
}

// Report is everything that [Probe] found.
type Report struct {
	System     System          `json:"system"`
	Checks     []driver.Check  `json:"checks"`
	Boundaries []driver.Report `json:"boundaries"`
	// Default is the boundary that a sandbox gets when none is asked for, and
	// Works tells whether it can be had here.
	Default sandbox.Boundary `json:"default"`
	Works   bool             `json:"works"`
}

// System is the machine in a few words.
type System struct {
	Kernel       string `json:"kernel"`
	Architecture string `json:"architecture"`
	CPUs         int    `json:"cpus"`
	MemoryBytes  int64  `json:"memory_bytes"`
	UID          int    `json:"uid"`
	Build        string `json:"build"`
}

// Probe asks every question. It takes up to a few seconds when a program that
// it runs hangs, normally well under one, and never fails: what could not be
// found out is reported as such.
func Probe(ctx context.Context, o Options) Report {
	checks := Checks(ctx, o)
	r := Report{
		System:  system(o),
		Checks:  checks,
		Default: sandbox.GVisor,
	}
	r.Boundaries = boundaries(ctx, o, checks)
	for _, b := range r.Boundaries {
		if b.Boundary == r.Default {
			r.Works = b.Available == driver.Yes
		}
	}
	return r
}

// Checks asks every question that is not about one boundary.
func Checks(ctx context.Context, o Options) []driver.Check {
	var out []driver.Check
	out = append(out, kernelChecks()...)
	out = append(out, cgroupChecks()...)
	out = append(out, deviceChecks()...)
	out = append(out, programChecks(ctx)...)
	out = append(out, resourceChecks(o)...)
	out = append(out, installChecks(ctx, o)...)
	return out
}

func system(o Options) System {
	return System{
		Kernel:       kernelRelease(),
		Architecture: runtime.GOARCH,
		CPUs:         runtime.NumCPU(),
		MemoryBytes:  meminfo()["MemTotal"],
		UID:          getuid(),
		Build:        o.Build,
	}
}

// find returns the check of that name; one that was never asked cannot be
// told.
func find(checks []driver.Check, name string) driver.Check {
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	return driver.Check{Name: name, Verdict: driver.CannotTell, Reason: "not asked"}
}

func yes(name, reason string) driver.Check {
	return driver.Check{Name: name, Verdict: driver.Yes, Reason: reason}
}

func no(name, reason, remedy string) driver.Check {
	return driver.Check{Name: name, Verdict: driver.No, Reason: reason, Remedy: remedy}
}

func unsure(name, reason, remedy string) driver.Check {
	return driver.Check{Name: name, Verdict: driver.CannotTell, Reason: reason, Remedy: remedy}
}
