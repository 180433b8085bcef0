package keeper

import (
	"runtime"
	"sync"
)

// A keeper is content with less than all processors: what it forwards is not
// worth more threads. Counting an image, while its sandbox stands still, is.
var procs struct {
	mu    sync.Mutex
	users int
	usual int
}

// allProcessors has Go code of this process run on all processors until done is
// called.
func allProcessors() (done func()) {
	procs.mu.Lock()
	defer procs.mu.Unlock()
	if procs.users++; procs.users == 1 {
		procs.usual = runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), runtime.NumCPU()))
	}
	return func() {
		procs.mu.Lock()
		defer procs.mu.Unlock()
		if procs.users--; procs.users == 0 {
			runtime.GOMAXPROCS(procs.usual)
		}
	}
}
