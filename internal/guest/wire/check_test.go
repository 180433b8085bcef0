package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestHelloReplyCheck(t *testing.T) {
	start := &wire.Start{ID: "p1", Argv: []string{"true"}}
	long := strings.Repeat("x", 1<<16)
	for _, tt := range []struct {
		name  string
		start *wire.Start
		text  string
		ok    bool
	}{
		{"nothing", nil, `{}`, true},
		{"no start, a boot", nil, `{"protocol":1,"build":"b","boot_id":"x","users":["root","user"]}`, true},
		{"as asked", start, `{"process":{"id":"p1","pid":7,"argv":["true"],"exit":{"code":-1,"signal":9}}}`, true},
		{"neither", start, `{}`, true},
		{"an error", start, `{"start_error":{"kind":"not_found","message":"no such program"}}`, true},
		{"a long error", start, `{"start_error":{"kind":"not_found","message":"` + long + `","hint":"` + long + `","field":"` + long + `"}}`, true},
		{"an error of no kind", start, `{"start_error":{"kind":"root","message":"x"}}`, false},
		{"an error unasked", nil, `{"start_error":{"kind":"not_found"}}`, false},
		{"both", start, `{"process":{"id":"p1"},"start_error":{"kind":"not_found"}}`, false},
		{"a process unasked", nil, `{"process":{"id":"p1"}}`, false},
		{"another process", start, `{"process":{"id":"../../x"}}`, false},
		{"a PID below 0", start, `{"process":{"id":"p1","pid":-1}}`, false},
		{"a count below 0", start, `{"process":{"id":"p1","stdout":{"written":-1}}}`, false},
		{"a count that ends the range", start, `{"process":{"id":"p1","stderr":{"acked":9223372036854775807}}}`, false},
		{"an exit code of no process", start, `{"process":{"id":"p1","exit":{"code":256}}}`, false},
		{"a signal of no process", start, `{"process":{"id":"p1","exit":{"code":-1,"signal":-9}}}`, false},
		{"a number that is a string", start, `{"process":{"id":"p1","pid":"7"}}`, false},
		{"the arguments of a start", start, `{"process":{"id":"p1","argv":["` + strings.Repeat(`\u003c`, 1<<20) + `"]}}`, true},
		{"more than a start holds", start, `{"process":{"id":"p1","argv":["` + strings.Repeat("x", 2<<20) + `"]}}`, false},
		{"many users", nil, `{"users":[` + strings.Repeat(`"",`, 1024) + `""]}`, false},
		{"a bomb of users", nil, `{"users":[` + strings.Repeat(`"",`, 1<<20) + `""]}`, false},
		{"a long user", nil, `{"users":["` + long + `"]}`, false},
		{"a long build", nil, `{"build":"` + long + `"}`, false},
		{"a long boot", nil, `{"boot_id":"` + long + `"}`, false},
		{"no object", nil, `[]`, false},
		{"half", nil, `{"users":["`, false},
		{"more than one", nil, `{}{}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := readHello([]byte(tt.text), tt.start)
			if (err == nil) != tt.ok {
				t.Fatalf("got %v, want success %v", err, tt.ok)
			}
			if err == nil {
				bounded(t, &r)
			}
		})
	}
}

func readHello(b []byte, start *wire.Start) (r wire.HelloReply, err error) {
	if err = wire.Decode(b, &r); err == nil {
		err = r.Check(start)
	}
	return r, err
}

// bounded checks what a host relies on in a reply that has passed.
func bounded(t *testing.T, r *wire.HelloReply) {
	t.Helper()
	sentences := append([]string{r.Build, r.BootID}, r.Users...)
	if e := r.StartError; e != nil {
		sentences = append(sentences, e.Message, e.Hint, e.Field, e.Value)
	}
	if p := r.Process; p != nil && p.Exit != nil {
		sentences = append(sentences, p.Exit.Reason)
		if s := p.Exit.Status(); s < -1 || s > 255 {
			t.Errorf("exit status %d", s)
		}
	}
	for _, s := range sentences {
		if len(s) > 1600 || !utf8.ValidString(s) {
			t.Errorf("a sentence of %d bytes", len(s))
		}
	}
	if len(r.Users) > 1024 {
		t.Errorf("%d users", len(r.Users))
	}
	// What goes on to the daemon is no larger than it takes.
	if b, err := json.Marshal(r); err != nil || len(b) > wire.MaxHelloReply {
		t.Errorf("it becomes %d bytes, %v", len(b), err)
	}
}

func FuzzHelloReply(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"build":"b","boot_id":"x","users":["root"]}`), false)
	f.Add([]byte(`{"process":{"id":"p1","pid":7,"argv":["true"],"exit":{"code":-1,"signal":9}}}`), true)
	f.Add([]byte(`{"start_error":{"kind":"not_found","message":"\ud800"}}`), true)
	f.Fuzz(func(t *testing.T, b []byte, asked bool) {
		var start *wire.Start
		if asked {
			start = &wire.Start{ID: "p1"}
		}
		r, err := readHello(b, start)
		if err != nil {
			return
		}
		bounded(t, &r)
		if p := r.Process; p != nil && (!asked || p.ID != "p1" || p.PID < 0) {
			t.Errorf("process %+v", p)
		}
	})
}

// FuzzAnswers decodes everything else that a host decodes of a guest's.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"code":3,"at":"2026-01-02T03:04:05Z","reason":"x"}`))
	f.Add([]byte(`{"name":"a","type":"file","size":3,"meta":{"a":"b"},"raw_path":"/w=="}`))
	f.Add([]byte(`{"cpus":2,"limit_hits":{"disk":1}}`))
	f.Add([]byte(`{"error":{"kind":"denied","message":"no"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if x, err := wire.DecodeExit(b); err == nil {
			if s := x.Status(); s < -1 || s > 255 || len(x.Reason) > 1600 {
				t.Errorf("exit %+v", x)
			}
		}
		var e wire.Entry
		if wire.Decode(b, &e) == nil && e.Check() == nil && (e.Size < 0 || e.Type == "") {
			t.Errorf("entry %+v", e)
		}
		var m wire.Metrics
		if wire.Decode(b, &m) == nil && m.Check() == nil && (m.MemUsed < 0 || m.LimitHits[sandbox.LimitDisk] < 0) {
			t.Errorf("metrics %+v", m)
		}
		var body wire.ErrorBody
		if wire.Decode(b, &body) == nil {
			if e := wire.CheckError(body.Error); e != nil && (len(e.Error()) > 8<<10 || e.Kind == "") {
				t.Errorf("error %+v", e)
			}
		}
	})
}
