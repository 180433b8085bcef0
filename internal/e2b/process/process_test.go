package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	wire "github.com/belljar-sh/belljar/internal/gen/e2b/process"
	"github.com/belljar-sh/belljar/internal/gen/e2b/process/processconnect"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// liar is a guest that answers a start with given bytes.
type liar struct {
	Guest
	says []byte
	list []guest.Process
}

func (l liar) Start(context.Context, *guest.Start) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.says)), nil
}
func (l liar) Processes(context.Context) ([]guest.Process, error) { return l.list, nil }
func (l liar) Ack(context.Context, string, guest.Ack) error       { return nil }
func (l liar) Signal(context.Context, string, guest.Signal) error { return nil }

func frame(t guest.FrameType, s guest.Stream, off uint64, payload string) []byte {
	b := make([]byte, guest.HeaderLen, guest.HeaderLen+len(payload))
	guest.Frame{Type: t, Stream: s, Len: uint32(len(payload)), Offset: off}.Put(b)
	return append(b, payload...)
}

// TestHostileStart: a guest that does not keep to its own protocol costs its
// caller the stream, with a reason, and nothing else.
func TestHostileStart(t *testing.T) {
	good := frame(guest.FrameJSON, 0, 0, `{"id":"x","pid":7}`)
	gap := string(binary.BigEndian.AppendUint64(nil, 5))
	for _, tt := range []struct {
		name   string
		says   []byte
		events int // that came before the error
		code   connect.Code
	}{
		{"nothing", nil, 0, connect.CodeUnavailable},
		{"half a head", good[:8], 0, connect.CodeUnavailable},
		{"half a body", good[:20], 0, connect.CodeUnavailable},
		{"output first", frame(guest.FrameData, guest.Stdout, 0, "x"), 0, connect.CodeInternal},
		{"no pid", frame(guest.FrameJSON, 0, 0, `{"id":"x"}`), 0, connect.CodeInternal},
		{"pid below", frame(guest.FrameJSON, 0, 0, `{"id":"x","pid":-1}`), 0, connect.CodeInternal},
		{"pid beyond", frame(guest.FrameJSON, 0, 0, `{"id":"x","pid":4294967296}`), 0, connect.CodeInternal},
		{"no JSON", frame(guest.FrameJSON, 0, 0, `x`), 0, connect.CodeInternal},
		{"no end", good, 1, connect.CodeUnavailable},
		{"no end after output", append(bytes.Clone(good), frame(guest.FrameData, guest.Stderr, 0, "x")...), 2, connect.CodeUnavailable},
		{"output that skips", append(bytes.Clone(good), frame(guest.FrameData, guest.Stdout, 9, "x")...), 1, connect.CodeUnavailable},
		{"an exit that cannot be", append(bytes.Clone(good), frame(guest.FrameExit, 0, 0, `{"code":70000}`)...), 1, connect.CodeUnavailable},
		{"lost output", append(bytes.Clone(good), frame(guest.FrameGap, guest.Stdout, 0, gap)...), 1, connect.CodeDataLoss},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, h := New(liar{says: tt.says}).Handler()
			srv := httptest.NewServer(h)
			defer srv.Close()
			s, err := processconnect.NewProcessClient(srv.Client(), srv.URL).Start(t.Context(), &wire.StartRequest{Process: &wire.ProcessConfig{Cmd: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			n := 0
			for s.Receive() {
				n++
			}
			if n != tt.events || connect.CodeOf(s.Err()) != tt.code {
				t.Errorf("got %d events and %v, want %d and %v", n, s.Err(), tt.events, tt.code)
			}
		})
	}
}

// TestTableIsBounded: neither many processes nor large configurations make the
// table grow without end.
func TestTableIsBounded(t *testing.T) {
	tab := &table{byPID: map[uint32]*entry{}}
	big := strings.Repeat("x", 64<<10)
	for i := range uint32(3 * maxKnown) {
		tab.remember(&entry{id: fmt.Sprint(idPrefix, i), pid: i + 1, config: &wire.ProcessConfig{Cmd: "c", Args: []string{big}}})
		if len(tab.byPID) > maxKnown || tab.bytes > maxConfigBytes {
			t.Fatalf("%d entries with %d bytes", len(tab.byPID), tab.bytes)
		}
	}
	if tab.get(1) != nil || tab.get(3*maxKnown) == nil {
		t.Error("not the oldest have gone")
	}
	var list []guest.Process
	for i := range 3 * maxKnown {
		list = append(list, guest.Process{ID: fmt.Sprint(idPrefix, "new", i), PID: i + 1, Argv: []string{"a", big}})
	}
	if got := tab.reconcile(list); len(got) != len(list) || len(tab.byPID) > maxKnown || tab.bytes > maxConfigBytes {
		t.Errorf("%d listed, %d entries with %d bytes", len(got), len(tab.byPID), tab.bytes)
	}
	if tab.reconcile(nil); len(tab.byPID) != 0 || tab.bytes != 0 {
		t.Errorf("%d entries with %d bytes are left of nothing", len(tab.byPID), tab.bytes)
	}
}

// TestListIsFiltered: what was not begun here is neither listed nor found.
func TestListIsFiltered(t *testing.T) {
	s := New(liar{list: []guest.Process{
		{ID: "p1", PID: 1, Argv: []string{"other"}, Tag: "t"},
		{ID: "e2bx", PID: -4, Argv: []string{"x"}, Tag: "t"},
		{ID: "e2bended", PID: 3, Argv: []string{"x"}, Tag: "t", Exit: &sandbox.Exit{}},
		{ID: "e2bmine", PID: 4, Argv: []string{"cmd", "\xff"}, Cwd: "/tmp", Tag: "t"},
	}})
	got, err := s.List(t.Context(), &wire.ListRequest{})
	if err != nil || len(got.Processes) != 1 || got.Processes[0].Pid != 4 || got.Processes[0].Config.Args[0] != "\ufffd" {
		t.Errorf("got %v, %v", got, err)
	}
	e, err := s.find(t.Context(), &wire.ProcessSelector{Selector: &wire.ProcessSelector_Tag{Tag: "t"}})
	if err != nil || e.id != "e2bmine" {
		t.Errorf("got %+v, %v, want the one that runs", e, err)
	}
	for _, sel := range []*wire.ProcessSelector{
		{Selector: &wire.ProcessSelector_Pid{Pid: 1}}, {Selector: &wire.ProcessSelector_Tag{Tag: ""}}, {Selector: &wire.ProcessSelector_Pid{Pid: 0}},
	} {
		if e, err := s.find(t.Context(), sel); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%v: got %+v, %v", sel, e, err)
		}
	}
}

func FuzzWorkdir(f *testing.F) {
	for _, s := range []string{"", "/", "~", "~/x", "~root", "x/../y", "/a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cwd string) {
		got, err := workdir(cwd)
		if err == nil && got != "" && got[0] != '/' && got != "~" && !strings.HasPrefix(got, "~/") {
			t.Errorf("%q: got %q", cwd, got)
		}
	})
}
