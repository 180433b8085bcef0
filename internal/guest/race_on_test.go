//go:build race

package guest_test

// slowdown is what the race detector may cost where a test bounds a time.
const slowdown = 10
