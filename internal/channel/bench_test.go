package channel_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/belljar-sh/belljar/internal/channel"
)

const benchChunk = 256 << 10

// BenchmarkBare is what the socket pair itself carries with 256 KiB reads.
func BenchmarkBare(b *testing.B) {
	r, w := pair(b)
	go func() {
		buf := make([]byte, benchChunk)
		for range b.N {
			w.Write(buf)
		}
		w.Close()
	}()
	b.SetBytes(benchChunk)
	buf := make([]byte, benchChunk)
	b.ResetTimer()
	for {
		if _, err := r.Read(buf); err != nil {
			return
		}
	}
}

// BenchmarkDownload is a response body over the down channel.
func BenchmarkDownload(b *testing.B) {
	host := down(b, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, benchChunk)
		for range b.N {
			w.Write(buf)
		}
	}))
	b.SetBytes(benchChunk)
	b.ResetTimer()
	resp, err := host.RoundTrip(request(b, "GET", "/", nil))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, benchChunk)
	n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf)
	if n != int64(b.N)*benchChunk {
		b.Fatalf("%d bytes, want %d", n, int64(b.N)*benchChunk)
	}
}

type chunks struct{ n int }

func (c *chunks) Read(p []byte) (int, error) {
	if c.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), c.n)
	c.n -= n
	return n, nil
}

// BenchmarkUpload is a request body over the down channel.
func BenchmarkUpload(b *testing.B) {
	host := down(b, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, benchChunk))
	}))
	b.SetBytes(benchChunk)
	b.ResetTimer()
	resp, err := host.RoundTrip(request(b, "PUT", "/", io.NopCloser(&chunks{b.N * benchChunk})))
	if err != nil {
		b.Fatal(err)
	}
	resp.Body.Close()
}

// BenchmarkPing is one empty exchange.
func BenchmarkPing(b *testing.B) {
	host := down(b, channel.Limits{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for b.Loop() {
		resp, err := host.RoundTrip(request(b, "GET", "/", nil))
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}
