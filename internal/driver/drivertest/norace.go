//go:build !race

package drivertest

// bulk is what each channel carries each way.
const bulk = 64 << 20
