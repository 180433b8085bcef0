// Command hostile stands in the place of belljar-guest in a sandbox: it answers
// hello as an honest guest does, and from the next request on it attacks the
// keeper over both channels, in the way that the variable ATTACK of its hello
// names, for as long as the keeper lets it. It uses as few system calls as it
// can, for those are what a flood costs behind gVisor.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// burst is how much is written at once.
const burst = 64 << 10

func main() {
	if err := run(os.NewFile(3, "down"), os.NewFile(4, "up")); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	select {} // an end of its own would look like a success of the keeper's
}

// run attacks until the keeper has had enough, or there is no more to do.
func run(down, up *os.File) error {
	h := &hostile{down: newEnd(down), up: newEnd(up)}
	name, err := h.hello()
	if err != nil {
		return err
	}
	attack, ok := attacks[name]
	if !ok {
		return fmt.Errorf("no attack %q", name)
	}
	if h.stream, _, err = h.request(); err != nil {
		return err
	}
	go io.Copy(io.Discard, h.down.file)
	attack(h)
	h.down.w.Flush()
	h.up.w.Flush()
	return nil
}

// end is one channel.
type end struct {
	file *os.File
	w    *bufio.Writer
	*http2.Framer
}

func newEnd(f *os.File) *end {
	e := &end{file: f, w: bufio.NewWriterSize(f, burst)}
	e.Framer = http2.NewFramer(e.w, f)
	e.AllowIllegalWrites = true
	return e
}

type hostile struct {
	down, up *end
	stream   uint32 // of a request that is not answered
}

// hello takes the preface and the hello, answers it and returns the attack that
// it names.
func (h *hostile) hello() (attack string, err error) {
	if _, err := io.ReadFull(h.down.file, make([]byte, len(http2.ClientPreface))); err != nil {
		return "", err
	}
	h.down.WriteSettings()
	stream, body, err := h.request()
	if err != nil {
		return "", err
	}
	var hello wire.Hello
	if err := json.Unmarshal(body, &hello); err != nil {
		return "", err
	}
	reply, err := json.Marshal(wire.HelloReply{Protocol: wire.Protocol, Build: hello.Build, BootID: "x", Users: []string{"root"}})
	if err != nil {
		return "", err
	}
	h.down.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: encode(":status", "200")})
	h.down.WriteData(stream, true, reply)
	return hello.Env["ATTACK"], h.down.w.Flush()
}

// request reads the next request as a whole.
func (h *hostile) request() (stream uint32, body []byte, err error) {
	for {
		f, err := h.down.ReadFrame()
		if err != nil {
			return 0, nil, err
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if stream = f.StreamID; f.StreamEnded() {
				return stream, body, nil
			}
		case *http2.DataFrame:
			if body = append(body, f.Data()...); f.StreamEnded() {
				return stream, body, nil
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				h.down.WriteSettingsAck()
				h.down.w.Flush()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				h.down.WritePing(true, f.Data)
				h.down.w.Flush()
			}
		}
	}
}

func encode(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}
