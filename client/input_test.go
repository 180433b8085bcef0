package client

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// Input arrives whole and in order, however its reader hands it out.
func TestInput(t *testing.T) {
	want := make([]byte, 5<<20+123)
	for i := range want {
		want[i] = byte(i * 31 >> 4)
	}
	for name, r := range map[string]io.Reader{
		"plain":               bytes.NewReader(want),
		"halves":              iotest.HalfReader(bytes.NewReader(want)),
		"end with data":       iotest.DataErrReader(bytes.NewReader(want)),
		"an error in the end": io.MultiReader(bytes.NewReader(want), iotest.ErrReader(errors.New("broken"))),
	} {
		t.Run(name, func(t *testing.T) {
			in := newInput(r)
			go in.read(t.Context())
			var got []byte
			for {
				b, ok := in.next(t.Context())
				if !ok || len(b.data) > inputBlock {
					t.Fatalf("got %v with %d bytes", ok, len(b.data))
				}
				got = append(got, b.data...)
				if b.eof {
					break
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, want the %d unchanged", len(got), len(want))
			}
		})
	}
}
