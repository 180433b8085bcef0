package cli

import (
	"encoding/base64"
	"os"
	"unicode/utf8"
)

// capture keeps the head and the tail of a stream in memory, counts all of it
// and writes the whole to a file once it is more than fits. It is for one
// goroutine.
type capture struct {
	limit int64  // bytes kept inline: half of it head, half tail
	cap   int64  // bytes written to the file
	name  string // pattern of the file's name

	head  []byte
	tail  []byte // a ring once it is full
	at    int    // oldest byte of the ring
	total int64
	lost  int64 // told by the source as missing

	file    *os.File
	written int64
	fileErr error
}

// Sizes of what is kept of a command's output under -o json.
const (
	inlineOutput  = 64 << 10
	maxOutputFile = 256 << 20
)

func newCapture(name string, limit int64) *capture {
	if limit == 0 {
		limit = inlineOutput
	}
	return &capture{limit: limit, cap: maxOutputFile, name: name}
}

// Write never fails: what cannot be kept is counted.
func (c *capture) Write(p []byte) (int, error) {
	before := c.total
	c.total += int64(len(p))
	if c.total > c.limit && before <= c.limit {
		c.spill()
	}
	if c.file != nil {
		c.toFile(p)
	}
	n := len(p)
	half := int(c.limit - c.limit/2)
	if room := half - len(c.head); room > 0 {
		take := min(room, len(p))
		c.head = append(c.head, p[:take]...)
		p = p[take:]
	}
	c.toTail(p)
	return n, nil
}

func (c *capture) toTail(p []byte) {
	size := int(c.limit / 2)
	if len(p) >= size {
		c.tail, c.at = append(c.tail[:0], p[len(p)-size:]...), 0
		return
	}
	if room := size - len(c.tail); room > 0 {
		take := min(room, len(p))
		c.tail = append(c.tail, p[:take]...)
		p = p[take:]
	}
	for len(p) > 0 {
		n := copy(c.tail[c.at:], p)
		c.at = (c.at + n) % size
		p = p[n:]
	}
}

// spill opens the file when the limit is passed: all that came so far is
// still in memory then.
func (c *capture) spill() {
	c.file, c.fileErr = os.CreateTemp("", c.name)
	if c.fileErr == nil {
		c.toFile(c.head)
		c.toFile(c.ordered())
	}
}

func (c *capture) toFile(p []byte) {
	if c.fileErr != nil {
		return
	}
	p = p[:min(int64(len(p)), c.cap-c.written)]
	n, err := c.file.Write(p)
	c.written += int64(n)
	c.fileErr = err
}

func (c *capture) ordered() []byte {
	return append(append([]byte(nil), c.tail[c.at:]...), c.tail[:c.at]...)
}

// outputResult is one stream in the result of run and exec.
type outputResult struct {
	Bytes    int64  `json:"bytes"`             // written by the command
	Lost     int64  `json:"lost,omitempty"`    // overwritten before they could be read
	Omitted  int64  `json:"omitted,omitempty"` // between head and tail
	Encoding string `json:"encoding"`          // of head and tail: utf-8 or base64
	Head     string `json:"head"`
	Tail     string `json:"tail,omitempty"`
	File     string `json:"file,omitempty"` // holds the output from its beginning
	// FileBytes is less than Bytes when the file reached its cap.
	FileBytes int64  `json:"file_bytes,omitempty"`
	FileError string `json:"file_error,omitempty"`
}

// result closes the file and returns what was kept.
func (c *capture) result() outputResult {
	r := outputResult{Bytes: c.total + c.lost, Lost: c.lost, Encoding: "utf-8"}
	head, tail := c.head, c.ordered()
	if c.total <= c.limit {
		head, tail = append(append([]byte(nil), head...), tail...), nil
	} else {
		head, tail = wholeRunes(head, tail)
		r.Omitted = c.total - int64(len(head)) - int64(len(tail))
	}
	if utf8.Valid(head) && utf8.Valid(tail) {
		r.Head, r.Tail = string(head), string(tail)
	} else {
		r.Encoding = "base64"
		r.Head, r.Tail = base64.StdEncoding.EncodeToString(head), base64.StdEncoding.EncodeToString(tail)
	}
	if c.file != nil {
		r.File, r.FileBytes = c.file.Name(), c.written
		if err := c.file.Close(); c.fileErr == nil {
			c.fileErr = err
		}
	}
	if c.fileErr != nil {
		r.FileError = c.fileErr.Error()
	}
	return r
}

// wholeRunes drops the pieces of characters that the cut has left at the end
// of the head and at the beginning of the tail.
func wholeRunes(head, tail []byte) ([]byte, []byte) {
	for n := 1; n < utf8.UTFMax && n <= len(head); n++ {
		if last := head[len(head)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				head = head[:len(head)-n]
			}
			break
		}
	}
	for n := 0; n < utf8.UTFMax && n < len(tail); n++ {
		if utf8.RuneStart(tail[n]) {
			return head, tail[n:]
		}
	}
	return head, tail
}
