// Package harness is what the benchmarks of Belljar share: cases with a
// promise, two things measured in turn within one run, medians, counts of what
// a host holds before and after, and the same result as a table for people and
// as JSON for programs.
package harness
