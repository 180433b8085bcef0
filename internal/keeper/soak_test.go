package keeper_test

import (
	"io"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/internal/driver/fake"
	"github.com/belljar-sh/belljar/internal/keeper"
)

// TestManyRounds creates, uses and deletes sandboxes one after the other:
// goroutines, descriptors, files and memory stay where they were.
func TestManyRounds(t *testing.T) {
	rounds := 200
	if testing.Short() || raced {
		rounds = 50
	}
	k := start(t, keeper.Options{}, fake.Options{})
	round := func() {
		id := k.create(t)
		want := testguest.NoiseSum(300 << 10)
		if _, got := k.ask(t, id, 7, "PUT", "/v1/test/sum", io.NopCloser(testguest.Noise(300<<10))); got != want {
			t.Fatalf("digest %s, want %s", got, want)
		}
		if _, err := k.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for range 30 {
		round()
	}
	type held struct{ goroutines, fds, files int }
	count := func() held {
		files, err := filepath.Glob(filepath.Join(k.dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return held{runtime.NumGoroutine(), openFDs(t), len(files)}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	before, memory := count(), heap()
	for range rounds {
		round()
	}
	var after held
	eventually(t, "goroutines and descriptors are back", func() bool {
		after = count()
		return after.goroutines <= before.goroutines+2 && after.fds <= before.fds && after.files <= before.files
	})
	// HTTP/2 keeps a connection that has ended in mind for five seconds.
	eventually(t, "memory is back", func() bool { return heap() < memory+8<<20 })
	t.Logf("before %+v %d KiB, after %+v %d KiB", before, memory>>10, after, heap()>>10)
}

// TestIdleSandboxIsSmall measures what an idle sandbox costs: keeper, client
// and the guest's ends of the channels together.
func TestIdleSandboxIsSmall(t *testing.T) {
	k := start(t, keeper.Options{}, fake.Options{})
	k.create(t)
	inuse := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := inuse()
	const n = 40
	for range n {
		id := k.create(t)
		k.ask(t, id, 7, "GET", "/v1/ping", nil)
	}
	each := (inuse() - before) / n
	t.Logf("%d KiB for each idle sandbox", each>>10)
	if each > 512<<10 && !raced {
		t.Errorf("%d KiB for each idle sandbox, want at most 512", each>>10)
	}
}

// TestConstantMemory streams 1 GiB through the keeper both ways.
func TestConstantMemory(t *testing.T) {
	if testing.Short() || raced {
		t.Skip("probe: -short or -race: 2 GiB would take minutes")
	}
	k := start(t, keeper.Options{}, fake.Options{})
	id := k.create(t)
	k.ask(t, id, 7, "GET", "/v1/test/bytes?zero=1&n=67108864", nil)
	before := rss(t)
	most := before
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, rss(t))
			case <-stop:
				return
			}
		}
	}()
	const gib = 1 << 30
	resp, err := k.Guest(id, 7).RoundTrip(guestRequest(t, "GET", "/v1/test/bytes?zero=1&n=1073741824", nil))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 256<<10))
	if n != gib || err != nil {
		t.Errorf("download: %d bytes, %v", n, err)
	}
	resp.Body.Close()
	if _, got := k.ask(t, id, 7, "PUT", "/v1/test/drop", io.NopCloser(io.LimitReader(zeros{}, gib))); got != "1073741824" {
		t.Errorf("upload: %s bytes", got)
	}
	close(stop)
	<-done
	t.Logf("most memory while 2 GiB passed: %d MiB more than before, guest and client included", (most-before)>>20)
	if most-before > 64<<20 {
		t.Errorf("memory grew by %d MiB", (most-before)>>20)
	}
}
