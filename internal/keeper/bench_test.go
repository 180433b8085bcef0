package keeper_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver/fake"
	"github.com/belljar-sh/belljar/internal/keeper"
)

const benchChunk = 256 << 10

// countCPU reports the processor time of guest, keeper and client together,
// which a busy machine disturbs less than wall time.
func countCPU(b *testing.B) {
	used := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	b.Cleanup(func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") })
}

// BenchmarkBare is a socket pair with 256 KiB reads and writes: what the
// others are compared with.
func BenchmarkBare(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	go func() {
		buf := make([]byte, benchChunk)
		for range b.N {
			ends[1].Write(buf)
		}
		ends[1].Close()
	}()
	b.SetBytes(benchChunk)
	b.ResetTimer()
	countCPU(b)
	io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{ends[0]}, make([]byte, benchChunk))
}

// BenchmarkDownload is guest -> keeper -> client, all in this process.
func BenchmarkDownload(b *testing.B) {
	k := start(b, keeper.Options{}, fake.Options{})
	id := k.create(b)
	n := int64(b.N) * benchChunk
	b.SetBytes(benchChunk)
	r, err := http.NewRequestWithContext(b.Context(), "GET", fmt.Sprintf("http://guest/v1/test/bytes?zero=1&n=%d", n), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	countCPU(b)
	resp, err := k.Guest(id, 7).RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, make([]byte, benchChunk))
	if got != n || err != nil {
		b.Fatalf("%d bytes, %v, want %d", got, err, n)
	}
}

// BenchmarkUpload is client -> keeper -> guest, which hashes nothing.
func BenchmarkUpload(b *testing.B) {
	k := start(b, keeper.Options{}, fake.Options{})
	id := k.create(b)
	n := int64(b.N) * benchChunk
	b.SetBytes(benchChunk)
	r, err := http.NewRequestWithContext(b.Context(), "PUT", "http://guest/v1/test/drop", io.NopCloser(io.LimitReader(zeros{}, n)))
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	countCPU(b)
	resp, err := k.Guest(id, 7).RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || string(got) != fmt.Sprint(n) {
		b.Fatalf("%s bytes, %v, want %d", got, err, n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// BenchmarkPing is one empty exchange with the guest.
func BenchmarkPing(b *testing.B) {
	k := start(b, keeper.Options{}, fake.Options{})
	id := k.create(b)
	g := k.Guest(id, 7)
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), "GET", "http://guest/v1/ping", nil)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := g.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

// BenchmarkCreate is a whole life: create, hello, delete.
func BenchmarkCreate(b *testing.B) {
	k := start(b, keeper.Options{}, fake.Options{})
	for b.Loop() {
		id := k.create(b)
		if _, err := k.Delete(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}
