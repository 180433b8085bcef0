package outlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// replay is what a log says, put together again.
type replay struct {
	data [3]bytes.Buffer
	lost [3]int64
	at   [3]int64
	exit *sandbox.Exit
}

// decode reads frames and checks that offsets follow one another from those
// given on.
func decode(t *testing.T, frames []byte, from ...int64) *replay {
	t.Helper()
	var p replay
	copy(p.at[1:], from)
	r := bytes.NewReader(frames)
	for {
		f, err := wire.ReadFrame(r)
		if err == io.EOF {
			return &p
		}
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, f.Len)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		if f.Type != wire.FrameExit && int64(f.Offset) != p.at[f.Stream] {
			t.Fatalf("a frame of type %d at %d, want %d", f.Type, f.Offset, p.at[f.Stream])
		}
		switch f.Type {
		case wire.FrameData:
			p.data[f.Stream].Write(b)
			p.at[f.Stream] += int64(len(b))
		case wire.FrameGap:
			n := int64(binary.BigEndian.Uint64(b))
			p.lost[f.Stream] += n
			p.at[f.Stream] += n
		case wire.FrameExit:
			p.exit = new(sandbox.Exit)
			if err := json.Unmarshal(b, p.exit); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func open(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func read(t *testing.T, l *Log) *replay {
	t.Helper()
	var b bytes.Buffer
	if err := l.CopyTo(t.Context(), &b, Offsets{}, false, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	return decode(t, b.Bytes())
}

func write(t *testing.T, l *Log, s wire.Stream, at int64, data string) {
	t.Helper()
	if err := l.Write(s, at, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

func TestLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, dir)
	write(t, l, wire.Stdout, 0, "hello ")
	write(t, l, wire.Stderr, 0, "oops")
	write(t, l, wire.Stdout, 3, "lo world") // a part of it again
	write(t, l, wire.Stdout, 0, "hel")      // all of it again
	if err := l.Jump(wire.Stderr, 10); err != nil {
		t.Fatal(err)
	}
	l.Close()

	// A writer that was killed in the middle of a frame.
	name := filepath.Join(dir, segment{}.name())
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	torn := append(bytes.Clone(whole), whole[:wire.HeaderLen+2]...)
	if err := os.WriteFile(name, torn, 0o600); err != nil {
		t.Fatal(err)
	}

	l = open(t, dir)
	if stdout, stderr, ended := l.Next(); stdout != 11 || stderr != 10 || ended {
		t.Errorf("next after the crash: got %d, %d, %v, want 11, 10, false", stdout, stderr, ended)
	}
	write(t, l, wire.Stderr, 10, "!")
	if err := l.End(sandbox.Exit{Code: 7}); err != nil {
		t.Fatal(err)
	}
	p := read(t, l)
	if got := p.data[wire.Stdout].String(); got != "hello world" {
		t.Errorf("stdout: got %q", got)
	}
	if got := p.data[wire.Stderr].String(); got != "oops!" || p.lost[wire.Stderr] != 6 {
		t.Errorf("stderr: got %q with %d lost, want oops! with 6", got, p.lost[wire.Stderr])
	}
	if p.exit == nil || p.exit.Code != 7 {
		t.Errorf("exit: got %+v, want 7", p.exit)
	}
	l.Close()
	if _, _, ended := open(t, dir).Next(); !ended {
		t.Error("the exit was forgotten")
	}
}

// Beginning and end are kept, the middle is counted, the size is bounded.
func TestTheMiddleGoes(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	block := make([]byte, 100_000)
	const blocks = 200 // 20 MB
	for i := range blocks {
		for j := range block {
			block[j] = byte(i)
		}
		write(t, l, wire.Stdout, int64(i)*int64(len(block)), string(block))
	}
	p := read(t, l)
	got := p.data[wire.Stdout].Bytes()
	if got[0] != 0 || got[len(got)-1] != blocks-1 {
		t.Errorf("begins with %d and ends with %d, want 0 and %d", got[0], got[len(got)-1], blocks-1)
	}
	if total := int64(len(got)) + p.lost[wire.Stdout]; total != blocks*int64(len(block)) {
		t.Errorf("kept and lost are %d bytes, want %d", total, blocks*len(block))
	}
	size := int64(0)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		info, err := n.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if most := int64(Segments+1) * (SegmentBytes + wire.HeaderLen + wire.MaxPayload); size > most {
		t.Errorf("%d bytes on disk, want at most %d", size, most)
	}
}

// A reader that follows sees all that is written and then the end.
func TestFollow(t *testing.T) {
	l := open(t, t.TempDir())
	var out bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.CopyTo(t.Context(), &out, Offsets{}, true, func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
	const n = 3000
	for i := range int64(n) {
		write(t, l, wire.Stdout, i*8, "12345678")
	}
	if err := l.End(sandbox.Exit{}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if p := decode(t, out.Bytes()); p.data[wire.Stdout].Len() != n*8 || p.exit == nil {
		t.Errorf("got %d bytes and exit %v, want %d and one", p.data[wire.Stdout].Len(), p.exit, n*8)
	}

	l = open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.CopyTo(ctx, io.Discard, Offsets{}, true, func() error { return nil }); err == nil {
		t.Error("follow went on after its context")
	}
}

// TestResume: a reader that has had any part of a log gets the rest of it, no
// byte twice and none left out.
func TestResume(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "log"))
	block := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxPayload/16)
	var at [3]int64
	for i := range 3 * SegmentBytes / len(block) {
		s := wire.Stream(1 + i%2)
		if i == 3 { // bytes that were lost before they came
			at[s] += 100
		}
		write(t, l, s, at[s], string(block))
		at[s] += int64(len(block))
	}
	if err := l.Jump(wire.Stdout, at[wire.Stdout]+7); err != nil {
		t.Fatal(err)
	}
	if err := l.End(sandbox.Exit{Code: 2}); err != nil {
		t.Fatal(err)
	}
	whole := read(t, l)
	for _, from := range []Offsets{
		{}, {1, 0}, {0, 1}, {int64(len(block)), int64(len(block))}, {int64(len(block)) - 1, 5}, {int64(len(block)) + 50, int64(len(block)) + 50},
		{at[wire.Stdout], at[wire.Stderr]}, {at[wire.Stdout] + 3, 0}, {at[wire.Stdout] + 7, at[wire.Stderr] - 1},
	} {
		var b bytes.Buffer
		if err := l.CopyTo(t.Context(), &b, from, false, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		p := decode(t, b.Bytes(), from.Stdout, from.Stderr)
		if p.exit == nil || p.exit.Code != 2 || p.at != whole.at {
			t.Errorf("from %+v: it ends at %v with %+v, want %v", from, p.at, p.exit, whole.at)
		}
		for _, s := range []wire.Stream{wire.Stdout, wire.Stderr} {
			if !bytes.HasSuffix(whole.data[s].Bytes(), p.data[s].Bytes()) {
				t.Errorf("from %+v: other bytes of stream %d", from, s)
			}
		}
	}
}
