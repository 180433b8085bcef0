package manager

import (
	"os"
	"strings"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// What a guest says to hello names no process but the one that was asked for,
// and its words are bounded.
func TestHostileHello(t *testing.T) {
	start := &Start{Start: guest.Start{ID: "p1", Argv: []string{"true"}}, Capture: true}
	for _, tt := range []struct {
		name  string
		start *Start
		reply guest.HelloReply
		fails bool
	}{
		{"nothing", nil, guest.HelloReply{}, false},
		{"as asked", start, guest.HelloReply{Process: &guest.Process{ID: "p1"}}, false},
		{"another process", start, guest.HelloReply{Process: &guest.Process{ID: "../../x"}}, true},
		{"a process unasked", nil, guest.HelloReply{Process: &guest.Process{ID: "p1"}}, true},
		{"an error unasked", nil, guest.HelloReply{StartError: sandbox.Errorf(sandbox.NotFound, "x")}, true},
		{"an error of no kind", start, guest.HelloReply{StartError: &sandbox.Error{Kind: "root"}}, true},
		{"a long error", start, guest.HelloReply{StartError: sandbox.Errorf(sandbox.NotFound, "%s", strings.Repeat("x", 1<<16)+"\xff")}, false},
		{"many users", nil, guest.HelloReply{Users: make([]string, 1025)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			m, err := Open(t.Context(), Options{Keepers: nobody{}, Templates: nobody{}, LogDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close(t.Context())
			e := m.newEntry(Record{Sandbox: sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.Creating}})
			e.keeper = hostile{404, text(`{"error":{"kind":"not_found","message":"no"}}`)}
			c := &create{m: m, e: e, start: tt.start}
			var asked *guest.Start
			if tt.start != nil {
				asked = &tt.start.Start
			}
			var out Created
			made, err := answered(&wire.Created{Reply: tt.reply}, asked)
			if err == nil {
				out, err = c.finish(made)
			}
			if (err != nil) != tt.fails || tt.fails && sandbox.KindOf(err) != sandbox.Internal {
				t.Fatalf("got %v, want failure %v", err, tt.fails)
			}
			if e := out.StartError; e != nil && (len(e.Message) > 1000 || e.Kind != sandbox.NotFound) {
				t.Errorf("an error of %d bytes", len(e.Message))
			}
			if state := e.snapshot().State; tt.fails == (state == sandbox.Running) {
				t.Errorf("the sandbox is %v", state)
			}
			if names, err := os.ReadDir(dir); err != nil || tt.fails && len(names) > 0 {
				t.Errorf("%v, %v in the logs", names, err)
			}
		})
	}
}

// No ID but one of a process becomes a part of a path.
func TestLogDir(t *testing.T) {
	m := &Manager{o: Options{LogDir: "/logs"}}
	if dir, err := m.logDir("s", "p1"); err != nil || dir != "/logs/s/p1" {
		t.Errorf("got %q, %v", dir, err)
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a\x00", strings.Repeat("a", 65)} {
		if dir, err := m.logDir("s", id); err == nil {
			t.Errorf("%q became %q", id, dir)
		}
	}
}
