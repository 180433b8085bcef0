package gvisor

import (
	"bufio"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkRun measures a whole sandbox: created, started, one answer, gone.
// It reports medians of its parts in milliseconds.
func BenchmarkRun(b *testing.B) {
	d := newDriver(b)
	var mu sync.Mutex
	parts := map[string][]time.Duration{}
	add := func(name string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		parts[name] = append(parts[name], took)
	}
	cpu := cpuTime(b)
	rounds := 0
	for b.Loop() {
		rounds++
		b.StopTimer()
		req := request(b)
		req.Trace = func(name string, _ time.Time, took time.Duration) { add(name, took) }
		b.StartTimer()
		began := time.Now()
		i, err := d.Create(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		created := time.Now()
		if err := i.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		box := &box{t: b, i: i, down: bufio.NewReader(i.Channels().Down)}
		box.ask(map[string]any{"op": "echo"})
		answered := time.Now()
		if err := i.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		add("create", created.Sub(began))
		add("answer", answered.Sub(began))
		add("destroy", time.Since(answered))
		add("whole", time.Since(began))
	}
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(rounds), "cpu-ms")
	for name, d := range parts {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, name+"-ms")
	}
}

// cpuTime is what this process and those that it has waited for have used.
func cpuTime(b *testing.B) time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
