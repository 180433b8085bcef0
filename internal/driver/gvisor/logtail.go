package gvisor

import (
	"os"
	"sync"
	"time"
)

// tailBytes is how much of what the roles say is kept, for error messages.
const tailBytes = 16 << 10

// tailBurst is how much of it is taken at once, and tailPause what comes between
// two bursts: whoever writes more waits, and costs the keeper next to nothing.
// A role that ends with a trace of all its goroutines is not held up.
const (
	tailBurst = 256 << 10
	tailPause = 50 * time.Millisecond
)

// tail keeps the last bytes written to a pipe. Its far end may be in the hands
// of a guest.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	done chan struct{}
}

// newTail returns a tail and the writing end of its pipe.
func newTail() (*tail, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	t := &tail{done: make(chan struct{})}
	go t.read(r)
	return t, w, nil
}

// read ends when the last writer is gone.
func (t *tail) read(r *os.File) {
	defer close(t.done)
	defer r.Close()
	b := make([]byte, 4<<10)
	for taken := 0; ; {
		n, err := r.Read(b)
		if taken += n; taken >= tailBurst {
			taken = 0
			time.Sleep(tailPause)
		}
		t.mu.Lock()
		t.buf = append(t.buf, b[:n]...)
		if over := len(t.buf) - tailBytes; over > 0 {
			t.buf = append(t.buf[:0], t.buf[over:]...)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// text returns what is kept, for people; it is untrusted.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return clip(string(t.buf), tailBytes)
}
