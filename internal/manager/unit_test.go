package manager

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestChoose(t *testing.T) {
	gv := []sandbox.Boundary{sandbox.GVisor}
	two := []sandbox.Boundary{sandbox.GVisor, sandbox.Process}
	for _, tt := range []struct {
		name      string
		asked     sandbox.Boundary
		weaker    bool
		available []sandbox.Boundary
		want      sandbox.Boundary // "": unsupported
	}{
		{"default", "", false, gv, sandbox.GVisor},
		{"as asked", sandbox.Process, false, two, sandbox.Process},
		{"auto is the strongest", sandbox.Auto, false, []sandbox.Boundary{sandbox.Process, sandbox.GVisor}, sandbox.GVisor},
		{"auto without any", sandbox.Auto, false, nil, ""},
		{"never weaker by itself", sandbox.MicroVM, false, two, ""},
		{"weaker when allowed", sandbox.MicroVM, true, two, sandbox.GVisor},
		{"weaker is never stronger", sandbox.Container, true, gv, ""},
		{"weaker than the weakest", sandbox.Process, true, gv, ""},
		{"wasm has no stand-in", sandbox.Wasm, true, two, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			is, err := choose(tt.asked, tt.weaker, tt.available)
			if tt.want == "" {
				if sandbox.KindOf(err) != sandbox.Unsupported {
					t.Errorf("got %+v, %v, want unsupported", is, err)
				}
				return
			}
			if err != nil || is.Effective != tt.want {
				t.Errorf("got %+v, %v, want %v", is, err, tt.want)
			}
			if is.Effective != is.Requested && is.Reason == "" {
				t.Error("no reason is given")
			}
		})
	}
}

func frame(f guest.Frame, payload string) []byte {
	f.Len = uint32(len(payload))
	b := make([]byte, guest.HeaderLen, guest.HeaderLen+len(payload))
	f.Put(b)
	return append(b, payload...)
}

func exitFrame(x sandbox.Exit) []byte {
	b, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return frame(guest.Frame{Type: guest.FrameExit}, string(b))
}

func join2(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestScanner(t *testing.T) {
	data := frame(guest.Frame{Type: guest.FrameData, Stream: guest.Stdout}, "hello")
	gap := frame(guest.Frame{Type: guest.FrameGap, Stream: guest.Stderr, Offset: 5}, "\x00\x00\x00\x00\x00\x00\x01\x00")
	live := frame(guest.Frame{Type: guest.FrameKeepalive}, "")
	exit := exitFrame(sandbox.Exit{Code: 3})
	for _, tt := range []struct {
		name  string
		in    []byte
		fails bool
		gap   int64
		ended bool
	}{
		{"all kinds", join2(data, live, gap, data, exit), false, 256, true},
		{"nothing", nil, false, 0, false},
		{"a part", join2(data, exit[:20]), false, 0, false},
		{"after the exit", join2(exit, live), true, 0, true},
		{"exit of many bytes", frame(guest.Frame{Type: guest.FrameExit}, string(make([]byte, maxExit+1))), true, 0, false},
		{"exit that is none", frame(guest.Frame{Type: guest.FrameExit}, "hello"), true, 0, false},
		{"of a watch", frame(guest.Frame{Type: guest.FrameJSON}, "{}"), true, 0, false},
		{"unknown type", frame(guest.Frame{Type: 9}, ""), true, 0, false},
		{"unknown stream", frame(guest.Frame{Type: guest.FrameData, Stream: 7}, "x"), true, 0, false},
		{"a gap beyond all bounds", frame(guest.Frame{Type: guest.FrameGap, Stream: guest.Stdout, Offset: 1 << 61}, "\x7f\xff\xff\xff\xff\xff\xff\xff"), true, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, step := range []int{1, 7, 1 << 20} {
				var lost int64
				ended := false
				s := scanner{gap: func(_ guest.Stream, n int64) { lost += n }, exit: func(sandbox.Exit) { ended = true }}
				var err error
				for in := tt.in; len(in) > 0 && err == nil; in = in[min(step, len(in)):] {
					err = s.feed(in[:min(step, len(in))])
				}
				if (err != nil) != tt.fails || lost != tt.gap || ended != tt.ended {
					t.Errorf("by %d: got %v, gap %d, ended %v, want fails %v, gap %d, ended %v", step, err, lost, ended, tt.fails, tt.gap, tt.ended)
				}
			}
		})
	}
}

// Bytes of a guest never make the scanner panic, hold memory or take a cut
// stream for a whole one.
func FuzzOutput(f *testing.F) {
	f.Add(join2(frame(guest.Frame{Type: guest.FrameData, Stream: guest.Stdout}, "hello"), exitFrame(sandbox.Exit{})), 3)
	f.Add(frame(guest.Frame{Type: guest.FrameGap, Stream: guest.Stdout}, "\xff\xff\xff\xff\xff\xff\xff\xff"), 9)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		ended := false
		b := &outputBody{body: io.NopCloser(bytes.NewReader(in))}
		b.scan.gap = func(_ guest.Stream, n int64) {
			if n < 0 {
				t.Fatalf("a gap of %d", n)
			}
		}
		b.scan.exit = func(sandbox.Exit) { ended = true }
		buf := make([]byte, min(max(step, 1), 4096))
		var err error
		for err == nil {
			_, err = b.Read(buf)
		}
		if err == io.EOF && !ended {
			t.Fatal("a stream without an exit came to a good end")
		}
		if cap(b.scan.small) > 4*maxExit {
			t.Fatalf("the scanner holds %d bytes", cap(b.scan.small))
		}
	})
}

func TestTickets(t *testing.T) {
	m := &Manager{}
	file := func() *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, err := m.AddFiles("", []*os.File{file(), file()})
	if err != nil || len(first) != 2 {
		t.Fatalf("got %v, %v", first, err)
	}
	second, err := m.AddFiles("", []*os.File{file()})
	if err != nil {
		t.Fatal(err)
	}
	files, err := m.tickets.take([]sandbox.Mount{{Handle: second[0]}, {Handle: first[1]}, {Handle: first[0]}})
	if err != nil || len(files) != 3 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, f := range files {
		if _, err := f.Stat(); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	for _, handle := range []string{first[0], "", "/etc/passwd", "aaaaaaaaaaaaaaaaaaaa.0", "aaaaaaaaaaaaaaaaaaaa.99", second[0] + "x"} {
		if _, err := m.tickets.take([]sandbox.Mount{{Handle: handle}}); err == nil {
			t.Errorf("%q was taken", handle)
		}
	}
	if _, err := m.AddFiles("short", []*os.File{file()}); err == nil {
		t.Error("a ticket that can be guessed was accepted")
	}
	m.tickets.close()
}

func TestHostname(t *testing.T) {
	for in, want := range map[string]string{"": "", "a": "a", "a_b.c": "a-b-c"} {
		if got := hostname(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
