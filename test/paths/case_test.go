package paths

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// attempt is one way in which a vector was carried out.
type attempt struct {
	way  string // for instance "api" or "cp out"
	err  error
	out  string // what came back
	took time.Duration
	note string
	// want, when set, replaces the vector's verdict: the way differs and the
	// scenario says how.
	want string
}

// run of one vector.
type caseRun struct {
	*world
	t     *testing.T
	v     vector
	arg   string // with fixtures filled in
	dir   string // the vector's own directory inside
	tmp   string // and on the host
	tries []attempt
	mem   *memory
}

func (w *world) begin(t *testing.T, v vector) *caseRun {
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, v.ID)
	return &caseRun{world: w, t: t, v: v, arg: w.fill(v.Request.Arg), dir: home + "/v/" + id, tmp: t.TempDir()}
}

// try carries out one request under the clock.
func (c *caseRun) try(way string, f func(ctx context.Context) (string, error)) *attempt {
	c.t.Helper()
	if c.v.Expect.MaxRSSMB > 0 && c.mem == nil {
		c.mem = c.watchMemory()
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), opTime)
	defer cancel()
	began := time.Now()
	out, err := f(ctx)
	c.tries = append(c.tries, attempt{way: way, out: out, err: err, took: time.Since(began)})
	if ctx.Err() != nil {
		c.t.Errorf("%s: it hangs", way)
	}
	return &c.tries[len(c.tries)-1]
}

// cli carries out a belljar command; an exit code other than 0 is an error.
func (c *caseRun) cli(way string, stdin io.Reader, args ...string) *attempt {
	c.t.Helper()
	return c.try(way, func(context.Context) (string, error) {
		cmd := c.Command(args...)
		cmd.Stdin = stdin
		r := c.Finish(cmd)
		c.checkPrinted(way, r.Stderr)
		if r.Code != 0 {
			return r.Stdout, &exitError{r.Code, strings.TrimSpace(r.Stderr)}
		}
		return r.Stdout, nil
	})
}

// exitError is how a command of ours failed.
type exitError struct {
	code   int
	stderr string
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %s", e.code, e.stderr) }

// checkPrinted: nothing that is printed drives a terminal.
func (c *caseRun) checkPrinted(way, text string) {
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x202a && r <= 0x202e }); i >= 0 {
		c.t.Errorf("%s: control characters are printed: %q", way, text)
	}
}

// must is for fixtures.
func (c *caseRun) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// mischief runs the helper inside, as root when the user's rights are too few.
func (c *caseRun) mischief(args ...string) string {
	c.t.Helper()
	out, err := c.mischiefAs(c.name, "", args...)
	if err != nil {
		c.t.Fatalf("mischief %q: %v\n%s", args, err, out)
	}
	return out
}

func (c *caseRun) mischiefAs(box, user string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), opTime)
	defer cancel()
	var out bytes.Buffer
	exit, err := c.api.Exec(ctx, box, client.ExecOptions{
		Argv: append([]string{home + "/mischief"}, args...), User: user,
		Streams: client.Streams{Stdout: &out, Stderr: &out},
	})
	if err == nil && exit.Status() != 0 {
		err = fmt.Errorf("exit status %d", exit.Status())
	}
	return out.String(), err
}

func (c *caseRun) mkdir() { c.mischief("mkdir", c.dir) }

// The requests, each with its own way of reading a path.

func (c *caseRun) read(p string) {
	c.t.Helper()
	c.try("api read", func(ctx context.Context) (string, error) { return c.get(ctx, p, "") })
	c.try("e2b read", func(ctx context.Context) (string, error) { return c.e2bGet(ctx, p, "") })
	if e, err := c.api.Stat(c.t.Context(), c.name, p, ""); p == "" || err == nil && e.Type == wire.TypeDir {
		return // cp copies directories, and SANDBOX: is the home
	}
	c.cli("cp out", nil, "cp", c.name+":"+p, c.hostFile())
	c.checkOut()
}

func (c *caseRun) get(ctx context.Context, p, user string) (string, error) {
	f, err := c.api.GetFile(ctx, c.name, p, user, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(b), err
}

func (c *caseRun) putFile(ctx context.Context, p, text string) (client.Entry, error) {
	return c.api.PutFile(ctx, c.name, p, "", 0, strings.NewReader(text), int64(len(text)))
}

func (c *caseRun) writeTo(p string) {
	c.t.Helper()
	c.try("api write", func(ctx context.Context) (string, error) {
		e, err := c.putFile(ctx, p, "evil")
		if err == nil && c.v.Expect.AuditPath != "" && e.Path != c.v.Expect.AuditPath {
			c.t.Errorf("the API says it wrote %q, want %q", e.Path, c.v.Expect.AuditPath)
		}
		return e.Path, err
	})
	c.try("e2b write", func(ctx context.Context) (string, error) { return c.e2bPut(ctx, p, "evil") })
	src := path.Join(c.tmp, "src")
	c.must(os.WriteFile(src, []byte("evil"), 0o644))
	if p == "" {
		return // to cp SANDBOX: is the home
	}
	if strings.HasPrefix(p, "/") {
		c.api.Mkdir(c.t.Context(), c.name, path.Dir(path.Clean(p)), "") // cp makes no parents
	}
	c.cli("cp in", nil, "cp", src, c.name+":"+p)
}

// hostFile is a fresh name on the host for what is copied out.
func (c *caseRun) hostFile() string { return path.Join(c.tmp, fmt.Sprintf("out%d", len(c.tries))) }

// checkOut looks for the secret in what was copied to the host.
func (c *caseRun) checkOut() {
	entries, err := os.ReadDir(c.tmp)
	c.must(err)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			continue
		}
		if b, err := os.ReadFile(path.Join(c.tmp, e.Name())); err == nil && bytes.Contains(b, []byte(c.secret)) {
			c.t.Errorf("the canary was copied out as %s", e.Name())
		}
	}
}

// verdicts that the runner knows.
func verdicts() []string {
	return []string{"ok", "contained", "invalid", "not_found_or_invalid", "denied", "unauthorized", "limit", "error", "sanitised", "ok_or_invalid", "ok_or_limit"}
}

// meets reports whether the attempt came to what the verdict says. Of a
// command only its exit code counts: its kind of error is for people.
func (a *attempt) meets(verdict string) bool {
	kind := sandbox.KindOf(a.err)
	var exit *exitError
	isExit := errors.As(a.err, &exit)
	kinds := func(ks ...sandbox.Kind) bool {
		return slices.Contains(ks, kind) || isExit && (exit.code == 125 || exit.code == 2 || exit.code == 1)
	}
	client := []sandbox.Kind{sandbox.Invalid, sandbox.NotFound, sandbox.Denied, sandbox.Conflict, sandbox.AlreadyExists}
	switch verdict {
	case "ok", "sanitised":
		return a.err == nil
	case "contained": // the canaries tell
		return a.err == nil || kind != sandbox.Internal || isExit
	case "invalid":
		return kinds(client...)
	case "not_found_or_invalid":
		return kinds(sandbox.NotFound, sandbox.Invalid)
	case "denied":
		return kinds(client...)
	case "unauthorized":
		return kinds(sandbox.Denied, sandbox.NotFound)
	case "limit":
		return kinds(sandbox.ResourceExhausted)
	case "error":
		return a.err != nil && (kind != sandbox.Internal || isExit)
	case "ok_or_invalid":
		return a.err == nil || kinds(client...)
	case "ok_or_limit":
		return a.err == nil || kinds(sandbox.ResourceExhausted)
	}
	return false
}

// judge checks every attempt, and the host.
func (c *caseRun) judge() {
	c.t.Helper()
	if len(c.tries) == 0 {
		c.t.Error("nothing was tried")
	}
	for _, a := range c.tries {
		want := c.v.Expect.Verdict
		if a.want != "" {
			want = a.want
		}
		if !a.meets(want) {
			c.t.Errorf("%s: got %s, want %s", a.way, a.text(), want)
		}
		if a.err != nil && len(a.err.Error()) > 1024 {
			c.t.Errorf("%s: the message has %d bytes", a.way, len(a.err.Error()))
		}
		if ms := c.v.Expect.MaxMS; ms > 0 && strings.HasPrefix(a.way, "api") && c.fastest(a.way) > time.Duration(ms)*time.Millisecond {
			c.t.Errorf("%s: took %v, at most %d ms are allowed", a.way, c.fastest(a.way), ms)
		}
		if strings.Contains(a.out, c.secret) || a.err != nil && strings.Contains(a.err.Error(), c.secret) {
			c.t.Errorf("%s: the host's canary was read", a.way)
		}
	}
	if c.mem != nil {
		if grown := c.mem.stop(); grown > c.v.Expect.MaxRSSMB<<20 {
			c.t.Errorf("daemon and keepers grew by %d MiB, at most %d are allowed", grown>>20, c.v.Expect.MaxRSSMB)
		}
	}
	if _, err := os.Lstat(c.absent); err == nil {
		c.t.Error("the write canary exists")
		os.Remove(c.absent)
	}
	for _, p := range []string{"/HOST_WRITE_CANARY", "/tmp/HOST_WRITE_CANARY", "/evil", "/tmp/evil"} {
		if _, err := os.Lstat(p); err == nil {
			c.t.Errorf("%s exists on the host", p)
		}
	}
	if c.digest() != c.before {
		c.t.Error("something on the host changed")
		c.before = c.digest()
	}
}

// fastest is the time that the fastest attempt of one way took.
func (c *caseRun) fastest(way string) time.Duration {
	least := opTime
	for _, a := range c.tries {
		if a.way == way {
			least = min(least, a.took)
		}
	}
	return least
}

// revive checks that the sandbox has lived through the vector, and makes
// another one for the next if it has not.
func (c *caseRun) revive() {
	ctx := c.t.Context()
	sb, err := c.api.Get(ctx, c.name)
	if err == nil && sb.State == sandbox.Running {
		return
	}
	c.t.Errorf("the sandbox died: %s, %q, %v", sb.State, sb.EndReason, err)
	if events, err := c.api.Events(ctx, string(sb.ID), 0, false); err == nil {
		defer events.Close()
		for ev, err := events.Next(); err == nil; ev, err = events.Next() {
			c.t.Logf("event: %+v", ev)
		}
	}
	c.open(c.world.t)
}

// text is the attempt's outcome in a few words.
func (a *attempt) text() string {
	if a.err == nil {
		return "ok"
	}
	msg := a.err.Error()
	if len(msg) > 200 {
		msg = msg[:200] + "..."
	}
	return fmt.Sprintf("%s (%q)", sandbox.KindOf(a.err), msg)
}

// lines are the outcomes for the vector's line.
func (c *caseRun) lines() []string {
	var out []string
	for _, a := range c.tries {
		s := "ok"
		var exit *exitError
		switch {
		case errors.As(a.err, &exit):
			s = fmt.Sprintf("exit %d", exit.code)
		case a.err != nil:
			s = string(sandbox.KindOf(a.err))
		}
		if a.note != "" {
			s += " (" + a.note + ")"
		}
		if line := a.way + ": " + s; !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}
