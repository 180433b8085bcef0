// Package pattern makes endless data that differs from place to place and has
// no control characters, so that a terminal passes it on as it is and a byte
// that is lost, doubled or moved shows.
package pattern

import (
	"bytes"
	"fmt"
	"io"
)

const block = 256 << 10

// Write writes the first n bytes in blocks of 256 KiB.
func Write(w io.Writer, n int64) error {
	var buf bytes.Buffer
	for i := int64(0); n > 0; i++ {
		fmt.Fprintf(&buf, "%015x.", i*2654435761)
		if buf.Len() < block && int64(buf.Len()) < n {
			continue
		}
		k, err := w.Write(buf.Bytes()[:min(n, int64(buf.Len()))])
		if err != nil {
			return err
		}
		n -= int64(k)
		buf.Reset()
	}
	return nil
}
