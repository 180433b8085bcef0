package keeper

import (
	"fmt"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/build"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// TestHostileHello: nothing that a guest says to hello leaves the keeper before
// it has been bounded and checked.
func TestHostileHello(t *testing.T) {
	long := strings.Repeat("x", 1<<19)
	head := fmt.Sprintf(`{"protocol":%d,"build":%q`, guest.Protocol, build.ID())
	start := &guest.Start{ID: "p1", Argv: []string{"true"}}
	for _, tt := range []struct {
		name   string
		status int
		answer string
		want   sandbox.Kind // "": success
	}{
		{"ours", 200, head + `,"users":["root"],"process":{"id":"p1"}}`, ""},
		{"a long error of a start", 200, head + `,"start_error":{"kind":"not_found","message":"` + long + `"}}`, ""},
		{"an error of no kind of a start", 200, head + `,"start_error":{"kind":"","message":"x"}}`, sandbox.Internal},
		{"another process", 200, head + `,"process":{"id":"p2"}}`, sandbox.Internal},
		{"many users", 200, head + `,"users":[` + strings.Repeat(`"",`, 1<<18) + `""]}`, sandbox.Internal},
		{"another build", 200, `{"protocol":1,"build":"` + long + `"}`, sandbox.Conflict},
		{"a restore without a draw", 200, head + `,"restore":{"entropy":"host-live","clock":"host-live"}}`, sandbox.Internal},
		{"no end", 200, head + `,"users":["` + strings.Repeat("x", guest.MaxHelloReply) + `"]}`, sandbox.Internal},
		{"an error", 409, `{"error":{"kind":"conflict","message":"` + long + `","hint":"` + long + `"}}`, sandbox.Conflict},
		{"an error of no kind", 500, `{"error":{"kind":"root","message":"` + long + `"}}`, sandbox.Internal},
		{"no error", 500, long, sandbox.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reply, err := checkHello(tt.status, []byte(tt.answer), start)
			if sandbox.KindOf(err) != tt.want {
				t.Fatalf("got %v, want kind %q", err, tt.want)
			}
			e := sandbox.AsError(err)
			if e == nil {
				e = reply.StartError
			}
			if e != nil && len(e.Message)+len(e.Hint)+len(e.Value)+len(e.Field) > 4<<10 {
				t.Errorf("an error of %d bytes", len(e.Message)+len(e.Hint)+len(e.Value)+len(e.Field))
			}
		})
	}
}
