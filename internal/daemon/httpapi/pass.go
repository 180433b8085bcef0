package httpapi

import (
	"io"
	"net/http"
	"sync"
)

// Types of what is streamed.
const (
	octets = "application/octet-stream"
	frames = "application/vnd.belljar.frames"
)

// beginFrames sends the header of a stream of frames. Frames tell their own end,
// so they need no chunks around them, which would cost three system calls for
// each write instead of one; the connection ends with them.
func beginFrames(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", frames)
	w.Header().Set("Transfer-Encoding", "identity")
	w.WriteHeader(status)
}

// passBuffer is what one read of a stream takes at most.
const passBuffer = 512 << 10

var buffers = sync.Pool{New: func() any { return new([passBuffer]byte) }}

// pass copies a stream whose header has been sent. One that breaks off ends
// the connection, so that nobody takes a part for the whole. Live streams are
// flushed whenever something has come.
func pass(w http.ResponseWriter, body io.Reader, live bool) {
	buf := buffers.Get().(*[passBuffer]byte)
	defer buffers.Put(buf)
	flush := http.NewResponseController(w).Flush
	if live && flush() != nil {
		panic(http.ErrAbortHandler)
	}
	for {
		n, err := body.Read(buf[:])
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
			if live && flush() != nil {
				panic(http.ErrAbortHandler)
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// lateWriter sends frames: the header with the first byte or flush, so that an error
// before can still be answered.
type lateWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (l *lateWriter) begin() {
	if !l.begun {
		l.begun = true
		beginFrames(l.w, http.StatusOK)
	}
}

func (l *lateWriter) Write(p []byte) (int, error) {
	l.begin()
	return l.w.Write(p)
}

func (l *lateWriter) flush() error {
	l.begin()
	return http.NewResponseController(l.w).Flush()
}
