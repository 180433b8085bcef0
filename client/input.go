package client

import (
	"context"
	"io"
	"sync"
)

// inputBlock is the most input that one request carries.
const inputBlock = 1 << 20

// input reads ahead from a caller's reader while a request is under way, so
// that many small reads become one request.
type input struct {
	r    io.Reader
	come chan struct{} // something has been read
	room chan struct{} // something has been taken

	mu   sync.Mutex
	fill []byte // read and not yet taken
	eof  bool   // an error of the caller's reader ends the input as its end does
	sent []byte // what next returned last
}

// block is a piece of input.
type block struct {
	data []byte
	eof  bool
}

func newInput(r io.Reader) *input {
	return &input{r: r, come: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// read fills until the input or ctx ends. A Read of the caller's cannot be
// interrupted.
func (in *input) read(ctx context.Context) {
	buf := make([]byte, inputBlock/4)
	for ctx.Err() == nil {
		n, err := in.r.Read(buf)
		for !in.add(buf[:n], err != nil) {
			select {
			case <-in.room:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// add keeps b unless there is no room for it.
func (in *input) add(b []byte, eof bool) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.fill)+len(b) > inputBlock {
		return false
	}
	in.fill, in.eof = append(in.fill, b...), eof
	poke(in.come)
	return true
}

// next returns all that has been read, at least a byte or the end. The data is
// valid until the next call.
func (in *input) next(ctx context.Context) (block, bool) {
	for {
		in.mu.Lock()
		if len(in.fill) > 0 || in.eof {
			in.fill, in.sent = in.sent[:0], in.fill
			b := block{in.sent, in.eof}
			in.mu.Unlock()
			poke(in.room)
			return b, true
		}
		in.mu.Unlock()
		select {
		case <-in.come:
		case <-ctx.Done():
			return block{}, false
		}
	}
}
