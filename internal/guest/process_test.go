package guest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestExit(t *testing.T) {
	b := newBox(t, options{})
	tests := []struct {
		name   string
		argv   []string
		stdout string
		stderr string
		code   int
		signal int
	}{
		{"true", []string{"true"}, "", "", 0, 0},
		{"false", []string{"/bin/false"}, "", "", 1, 0},
		{"output", sh("echo out; echo err >&2; exit 7"), "out\n", "err\n", 7, 0},
		{"signal", sh("kill -9 $$"), "", "", -1, 9},
		{"arguments", []string{"printf", "%s|", "a b", "", "c\nd"}, "a b||c\nd|", "", 0, 0},
		{"dev null", []string{"cat"}, "", "", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := b.run(wire.Start{Argv: tt.argv})
			if r.stdout != tt.stdout || r.stderr != tt.stderr {
				t.Errorf("got %q, %q, want %q, %q", r.stdout, r.stderr, tt.stdout, tt.stderr)
			}
			if r.exit.Code != tt.code || r.exit.Signal != tt.signal {
				t.Errorf("got exit %+v, want code %d signal %d", r.exit, tt.code, tt.signal)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	b := newBox(t, options{})
	dir := t.TempDir()
	openUp(t, dir)
	plain := write(t, filepath.Join(dir, "plain"), "no program")
	garbage := write(t, filepath.Join(dir, "garbage"), "\x00\x01\x02")
	os.Chmod(garbage, 0o755)
	orphan := write(t, filepath.Join(dir, "orphan"), "#!/does/not/exist\n")
	os.Chmod(orphan, 0o755)
	tests := []struct {
		name  string
		start wire.Start
		kind  sandbox.Kind
		field string
		text  string
	}{
		{"no argv", wire.Start{}, sandbox.Invalid, "argv[0]", ""},
		{"empty argv", wire.Start{Argv: []string{""}}, sandbox.Invalid, "argv[0]", ""},
		{"nul", wire.Start{Argv: []string{"echo", "a\x00b"}}, sandbox.Invalid, "argv", "NUL"},
		{"not found", wire.Start{Argv: []string{"nonesuch-program"}}, sandbox.NotFound, "argv[0]", ""},
		{"path not found", wire.Start{Argv: []string{"/no/such"}}, sandbox.NotFound, "argv[0]", ""},
		{"interpreter", wire.Start{Argv: []string{orphan}}, sandbox.NotFound, "argv[0]", "interpreter"},
		{"not executable", wire.Start{Argv: []string{plain}}, sandbox.Denied, "argv[0]", "not executable"},
		{"directory", wire.Start{Argv: []string{"/tmp"}}, sandbox.Denied, "argv[0]", "a directory"},
		{"no format", wire.Start{Argv: []string{garbage}}, sandbox.Invalid, "argv[0]", "not a program"},
		{"cwd", wire.Start{Argv: []string{"true"}, Cwd: "/no/such"}, sandbox.Invalid, "cwd", "cwd does not exist"},
		{"cwd file", wire.Start{Argv: []string{"true"}, Cwd: plain}, sandbox.Invalid, "cwd", ""},
		{"cwd descriptor", wire.Start{Argv: []string{"true"}, Cwd: "/proc/self/fd/7"}, sandbox.Invalid, "cwd", ""},
		{"user", wire.Start{Argv: []string{"true"}, User: "nobody-here"}, sandbox.Invalid, "user", "no such user"},
		{"user ghost", wire.Start{Argv: []string{"true"}, User: "ghost"}, sandbox.Invalid, "user", "no such user"},
		{"env name", wire.Start{Argv: []string{"true"}, Env: map[string]string{"A=B": ""}}, sandbox.Invalid, "env", ""},
		{"id", wire.Start{ID: "Upper", Argv: []string{"true"}}, sandbox.Invalid, "id", ""},
		{"too long", wire.Start{Argv: []string{"true", strings.Repeat("x", 1<<20)}}, sandbox.Invalid, "argv", ""},
		{"timeout", wire.Start{Argv: []string{"true"}, Timeout: -1}, sandbox.Invalid, "timeout", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.start.ID == "" {
				tt.start.ID = <-nextID
			}
			_, err := b.Start(t.Context(), tt.start)
			var e *sandbox.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an error", err)
			}
			if e.Kind != tt.kind || e.Field != tt.field || !strings.Contains(e.Message, tt.text) {
				t.Errorf("got %s %s %q, want %s %s %q", e.Kind, e.Field, e.Message, tt.kind, tt.field, tt.text)
			}
			if len(e.Value) > 300 {
				t.Errorf("the value is not cut: %d bytes", len(e.Value))
			}
		})
	}
	if ps, err := b.Processes(t.Context()); err != nil || len(ps) != 0 {
		t.Errorf("got %d processes, %v after failed starts", len(ps), err)
	}
}

func TestEnvironment(t *testing.T) {
	b := newBox(t, options{hello: func(h *wire.Hello) {
		h.Env = map[string]string{"BOX": "1", "BOTH": "box", "PATH": "/usr/bin:/bin:/opt"}
	}})
	r := b.run(wire.Start{Argv: []string{"env", "-0"}, Env: map[string]string{"BOTH": "request", "LINES2": "a\nb\n"}})
	got := map[string]string{}
	for v := range strings.SplitSeq(strings.TrimSuffix(r.stdout, "\x00"), "\x00") {
		k, v, _ := strings.Cut(v, "=")
		got[k] = v
	}
	want := map[string]string{
		"BOX": "1", "BOTH": "request", "LINES2": "a\nb\n", "PATH": "/usr/bin:/bin:/opt",
		"HOME": b.home, "USER": b.user, "LOGNAME": b.user, "SHELL": "/bin/sh",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUsersAndDirectories(t *testing.T) {
	needRoot(t)
	b := newBox(t, options{})
	id := b.run(wire.Start{Argv: sh("id -u; id -g; id -G; pwd")})
	if want := "1000\n1000\n1000 4242\n" + b.home + "\n"; id.stdout != want {
		t.Errorf("user: got %q, want %q", id.stdout, want)
	}
	root := b.run(wire.Start{Argv: sh("id -u; id -G; pwd"), User: "root", Cwd: "/usr/../tmp"})
	if want := "0\n0\n/tmp\n"; root.stdout != want {
		t.Errorf("root: got %q, want %q", root.stdout, want)
	}
	secret := filepath.Join(filepath.Dir(b.home), "root") // 0700
	_, err := b.Start(t.Context(), wire.Start{ID: "denied", Argv: []string{"true"}, Cwd: secret})
	if e := sandbox.AsError(err); e == nil || e.Kind != sandbox.Invalid || e.Field != "cwd" {
		t.Errorf("cwd that the user may not enter: got %v", err)
	}
	caps := b.run(wire.Start{Argv: []string{"grep", "-h", "^CapEff", "/proc/self/status"}})
	if want := "CapEff:\t0000000000000000\n"; caps.stdout != want {
		t.Errorf("user: got %q, want %q", caps.stdout, want)
	}
}

func TestNoDescriptorsLeak(t *testing.T) {
	b := newBox(t, options{})
	r := b.run(wire.Start{Argv: sh("ls /proc/self/fd | tr '\\n' ' '")})
	if want := "0 1 2 3 "; r.stdout != want { // 3 is ls reading the directory
		t.Errorf("got descriptors %q, want %q", r.stdout, want)
	}
	mask := b.run(wire.Start{Argv: []string{"grep", "-hE", "^Sig(Blk|Ign)", "/proc/self/status"}})
	var blocked, ignored uint64
	if _, err := fmt.Sscanf(mask.stdout, "SigBlk: %x\nSigIgn: %x\n", &blocked, &ignored); err != nil {
		t.Fatalf("got %q: %v", mask.stdout, err)
	}
	// Go leaves signals 32 and 33 as it finds them: whoever runs the tests may
	// have had them ignored. PID 1 of a sandbox has not.
	const threading = 1<<31 | 1<<32
	if blocked != 0 || ignored&^threading != 0 {
		t.Errorf("got %q, want no signal blocked or ignored", mask.stdout)
	}
}

func TestStdin(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: []string{"cat"}, Stdin: true})
	steps := []struct {
		offset int64
		data   string
		eof    bool
		want   int64
	}{
		{0, "hello ", false, 6},
		{0, "hello world", false, 11}, // sent again from the beginning
		{11, "", false, 11},
		{3, "lo", false, 11}, // nothing new
		{11, "!", true, 12},
		{11, "!", true, 12}, // the same end again
	}
	for i, s := range steps {
		got, err := b.Stdin(t.Context(), p.ID, s.offset, strings.NewReader(s.data), s.eof)
		if err != nil || got != s.want {
			t.Fatalf("step %d: got %d, %v, want %d", i, got, err, s.want)
		}
	}
	if _, err := b.Stdin(t.Context(), p.ID, 12, strings.NewReader("more"), false); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("after the end: got %v, want a conflict", err)
	}
	if r := b.read(p.ID); r.stdout != "hello world!" {
		t.Errorf("got %q", r.stdout)
	}
	none := b.begin(wire.Start{Argv: []string{"sleep", "60"}})
	if _, err := b.Stdin(t.Context(), none.ID, 0, strings.NewReader("x"), false); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("without stdin: got %v, want invalid", err)
	}
	gap := b.begin(wire.Start{Argv: []string{"sleep", "60"}, Stdin: true})
	if _, err := b.Stdin(t.Context(), gap.ID, 5, strings.NewReader("x"), false); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("beyond the end: got %v, want a conflict", err)
	}
}

func TestStdinOfAProcessThatEnds(t *testing.T) {
	b := newBox(t, options{})
	p := b.begin(wire.Start{Argv: sh("head -c 3; exec sleep 0.2"), Stdin: true})
	_, err := b.Stdin(t.Context(), p.ID, 0, io.LimitReader(zeros{}, 64<<20), true)
	if sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("got %v, want a conflict: the process ended without reading", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestVolume carries 64 MiB through stdin and stdout and compares.
func TestVolume(t *testing.T) {
	b := newBox(t, options{})
	const size = 64 << 20
	p := b.begin(wire.Start{Argv: []string{"cat"}, Stdin: true})
	sent := sha256.New()
	fail := make(chan error, 1)
	go func() {
		n, err := b.Stdin(t.Context(), p.ID, 0, io.TeeReader(io.LimitReader(&counter{}, size), sent), true)
		if err == nil && n != size {
			err = fmt.Errorf("stdin took %d bytes", n)
		}
		fail <- err
	}()
	o, err := b.Attach(t.Context(), p.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	begin := time.Now()
	got := sha256.New()
	exit, lost, err := o.CopyTo(got, io.Discard)
	if err != nil || exit.Code != 0 || lost != 0 {
		t.Fatalf("got %+v, lost %d, %v", exit, lost, err)
	}
	if err := <-fail; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Errorf("got %s, want %s", hex.EncodeToString(got.Sum(nil)), hex.EncodeToString(sent.Sum(nil)))
	}
	t.Logf("%.0f MB/s through stdin and stdout", float64(size)/1e6/time.Since(begin).Seconds())
}

// counter is an endless stream of bytes that do not repeat soon.
type counter struct{ n uint64 }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		c.n = c.n*6364136223846793005 + 1442695040888963407
		p[i] = byte(c.n >> 56)
	}
	return len(p), nil
}

func TestIdempotentStart(t *testing.T) {
	b := newBox(t, options{})
	s := wire.Start{ID: "same", Argv: []string{"sleep", "60"}, Tag: "x"}
	type answer struct {
		p   wire.Process
		err error
	}
	answers := make(chan answer)
	for range 8 {
		go func() {
			p, err := b.Start(t.Context(), s)
			answers <- answer{p, err}
		}()
	}
	first := <-answers
	if first.err != nil {
		t.Fatal(first.err)
	}
	for range 7 {
		if a := <-answers; a.err != nil || a.p.PID != first.p.PID {
			t.Errorf("got %d, %v, want %d", a.p.PID, a.err, first.p.PID)
		}
	}
	s.Tag = "y"
	if _, err := b.Start(t.Context(), s); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("another request with the same ID: got %v, want a conflict", err)
	}
}
