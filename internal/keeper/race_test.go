//go:build race

package keeper_test

// raced tells that the race detector is in, which multiplies memory and time.
const raced = true
