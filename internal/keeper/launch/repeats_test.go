package launch_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// drawers are programs that draw from generators which they have seeded when
// they read their first line, and print NAME, a tab and a value for each, and at
// last "end". The names are those of the table in docs/SNAPSHOTS.md.
var drawers = map[string][]string{
	"drawer": {"/drawer"},
	"bash": {"bash", "-c", `while read x; do printf 'bash $RANDOM\t%s\n' $RANDOM-$RANDOM-$RANDOM-$RANDOM
printf 'bash $SRANDOM\t%s\n' $SRANDOM-$SRANDOM; printf 'end\t\n'; done`},
	"perl": {"perl", "-e", `$|=1; while (<STDIN>) { printf "Perl rand\t%.17f\nend\t\n", rand }`},
	"node": {"node", "-e", `const c=require("crypto");
require("readline").createInterface({input:process.stdin}).on("line",()=>{
console.log("Node Math.random\t"+Math.random()); console.log("Node crypto.randomBytes\t"+c.randomBytes(8).toString("hex"));
console.log("Node crypto.randomUUID\t"+c.randomUUID()); console.log("end\t")})`},
	"openssl": {"python3", "-c", `
import sys, ssl
for l in sys.stdin:
    print("OpenSSL RAND_bytes (Python ssl)\t" + ssl.RAND_bytes(8).hex()); print("end\t", flush=True)`},
	"python3": {"python3", "-c", `
import sys, os, random, uuid, secrets
own = random.Random()
for l in sys.stdin:
    print("Python random\t" + str(random.getrandbits(64)))
    print("Python random.Random\t" + str(own.getrandbits(64)))
    print("Python random.SystemRandom\t" + str(random.SystemRandom().getrandbits(64)))
    print("Python os.urandom\t" + os.urandom(8).hex())
    print("Python secrets\t" + secrets.token_hex(8))
    print("Python uuid.uuid4\t" + str(uuid.uuid4()))
    u = uuid.uuid1()
    print("Python uuid.uuid1\t" + str(u))
    print("Python uuid.uuid1, node\t" + str(u.node)); print("end\t", flush=True)`},
	"numpy": {"python3", "-c", `
import sys, numpy
own = numpy.random.default_rng()
for l in sys.stdin:
    print("NumPy random\t" + numpy.random.bytes(8).hex()); print("NumPy default_rng\t" + own.bytes(8).hex()); print("end\t", flush=True)`},
}

// there reports whether a drawer can run in a sandbox that sees this host's
// /usr.
func there(name string, argv []string) bool {
	if strings.HasPrefix(argv[0], "/") {
		return true
	}
	path := filepath.Join("/usr/bin", argv[0])
	if _, err := os.Stat(path); err != nil {
		return false
	}
	if name == "numpy" {
		return exec.Command(path, "-c", "import numpy").Run() == nil
	}
	return true
}

// drawing is what has been read of one drawer.
type drawing struct{ in, out int64 }

// draw has a drawer draw once more.
func (s *saver) draw(g *guestclient.Client, id string, d *drawing) map[string]string {
	s.t.Helper()
	var err error
	if d.in, err = g.Stdin(s.t.Context(), id, d.in, strings.NewReader("go\n"), false); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	o, err := g.Attach(ctx, id, d.out, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer o.Close()
	var text bytes.Buffer
	for !bytes.HasSuffix(text.Bytes(), []byte("end\t\n")) {
		e, err := o.Next()
		if err != nil || e.Exit != nil {
			s.t.Fatalf("%s: %v, %+v after %q", id, err, e.Exit, text.String())
		}
		text.Write(e.Data)
	}
	d.out, _ = o.Offsets()
	found := map[string]string{}
	for line := range strings.Lines(text.String()) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "\t"); name != "end" {
			found[name] = value
		}
	}
	return found
}

// documented reads the table of docs/SNAPSHOTS.md: what is said of each
// generator.
func documented(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../../docs/SNAPSHOTS.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| (repeats|fresh) \|`).FindAllStringSubmatch(string(b), -1) {
		out[strings.ReplaceAll(m[1], "`", "")] = m[2]
	}
	return out
}

// TestRepeats measures which generators of running programs give the same in
// sandboxes that came from one image, and compares that with what the
// documents say.
func TestRepeats(t *testing.T) {
	s := newSaver(t, "")
	buildInto(t, s.req.Root.Path, "drawer")
	s.create("", 1)
	at := map[string]*drawing{}
	for name, argv := range drawers {
		if !there(name, argv) {
			t.Logf("probe: this host has no %s", name)
			continue
		}
		g := s.guest(1)
		if _, err := g.Start(t.Context(), guest.Start{ID: name, Argv: argv, User: "root", Stdin: true}); err != nil {
			t.Fatalf("%s: %+v", name, sandbox.AsError(err))
		}
		at[name] = &drawing{}
		s.draw(g, name, at[name])
	}
	image := s.save(false, 2)
	var values [5]map[string]string
	for n := range values {
		values[n] = map[string]string{}
		generation := uint64(10 + n)
		s.create(image, generation)
		for name, d := range at {
			now := *d
			maps.Copy(values[n], s.draw(s.guest(generation), name, &now))
		}
		if _, err := s.Delete(t.Context(), s.req.ID); err != nil {
			t.Fatal(err)
		}
	}
	said := documented(t)
	for _, name := range slices.Sorted(maps.Keys(values[0])) {
		// Go's own generators have a state for each thread: which one goes on is
		// chance, so any two that agree will do.
		measured, seen := "fresh", map[string]bool{}
		for _, v := range values {
			if seen[v[name]] {
				measured = "repeats"
			}
			seen[v[name]] = true
		}
		t.Logf("%-34s %s", name, measured)
		if said[name] != measured {
			t.Errorf("%s: measured %q, docs/SNAPSHOTS.md says %q", name, measured, said[name])
		}
	}
}
