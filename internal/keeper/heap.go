package keeper

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// ampleHeap is what a keeper may hold without anybody asking why: its idle
	// heap has a few MiB.
	ampleHeap = 32 << 20
	heapLook  = 10 * time.Second
)

// watchHeap gives memory back after a burst, until ctx is done. An idle process
// collects no garbage by itself for minutes.
func watchHeap(ctx context.Context) {
	tick := time.NewTicker(heapLook)
	defer tick.Stop()
	var held runtime.MemStats
	for {
		select {
		case <-tick.C:
			runtime.ReadMemStats(&held)
			if held.HeapInuse+held.HeapIdle-held.HeapReleased > ampleHeap {
				debug.FreeOSMemory()
			}
		case <-ctx.Done():
			return
		}
	}
}
