package gvisor

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestTailIsSlow: a guest that writes to its log as fast as it can is made to
// wait, and the last that it wrote is kept.
func TestTailIsSlow(t *testing.T) {
	log, w, err := newTail()
	if err != nil {
		t.Fatal(err)
	}
	const flood = 500 * time.Millisecond
	if err := w.SetWriteDeadline(time.Now().Add(flood)); err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte("x"), 64<<10)
	total := 0
	for {
		n, err := w.Write(b)
		total += n
		if err != nil {
			break
		}
	}
	if most := tailBurst*int(flood/tailPause+2) + 1<<20; total > most {
		t.Errorf("%d bytes were taken in %v, want at most %d", total, flood, most)
	}
	if err := w.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("the end"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-log.done
	if got := log.text(); len(got) > tailBytes+3 || !strings.HasSuffix(strings.TrimSuffix(got, "..."), "the end") {
		t.Errorf("%d bytes are kept, to %q", len(got), got[max(0, len(got)-20):])
	}
}
