package channel

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"

	"golang.org/x/net/http2"
)

// ServeHost serves an up channel until it ends or ctx is done: the guest asks
// for connections with CONNECT and h decides each. Anything but CONNECT is
// refused before h. It owns conn and returns when every call of h has
// returned. The error is a [*Fault], or nil for an ordinary end.
func ServeHost(ctx context.Context, conn net.Conn, l Limits, h http.Handler) error {
	l = l.withDefaults()
	b := newWatchedConn(conn, GuestAsks, l)
	srv := server(l)
	srv.CountError = func(kind string) {
		// The guest has been told the limit and had acknowledged it.
		if kind == "over_max_streams" {
			b.fail(faultf("streams", "more than %d streams", l.Streams))
		}
	}
	return serve(ctx, b, srv, l, connectOnly(h))
}

func connectOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get(":protocol") != "" {
			w.Header().Set("Allow", http.MethodConnect)
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func server(l Limits) *http2.Server {
	return &http2.Server{
		MaxConcurrentStreams:         uint32(l.Streams),
		MaxReadFrameSize:             FrameBytes,
		MaxUploadBufferPerConnection: int32(l.BufferedBytes),
		MaxUploadBufferPerStream:     int32(l.StreamBytes),
		MaxDecoderHeaderTableSize:    headerTable,
		MaxEncoderHeaderTableSize:    headerTable,
		WriteByteTimeout:             l.WriteTime,
	}
}

// serve runs an HTTP/2 server on b and waits for its handlers.
func serve(ctx context.Context, b *bufConn, srv *http2.Server, l Limits, h http.Handler) error {
	var calls callGroup
	stop := context.AfterFunc(ctx, func() { b.end() })
	defer stop()
	if b.watch != nil && b.await() != nil {
		b.end()
		return b.fault()
	}
	srv.ServeConn(b, &http2.ServeConnOpts{
		Context: ctx,
		BaseConfig: &http.Server{
			MaxHeaderBytes: l.HeaderBytes,
			ErrorLog:       log.New(io.Discard, "", 0),
		},
		Handler: calls.wrap(h),
	})
	b.end()
	calls.wait()
	return b.fault()
}

// await waits for the first byte. x/net gives a client 10 seconds for its
// preface from ServeConn on, and a guest may have nothing to ask for hours.
func (b *bufConn) await() error {
	if len(b.buf) > 0 {
		return nil
	}
	return b.refill()
}
