//go:build race

package drivertest

// bulk is what each channel carries each way; the race detector makes 64 MiB
// a matter of half a minute.
const bulk = 16 << 20
