package paths

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

// opTime is how long one request may take before it counts as hanging.
const opTime = 2 * time.Minute

// world is an installation with one sandbox, and what must not change around
// it.
type world struct {
	*testenv.Env
	t      testing.TB
	api    *client.Client
	name   string // of the sandbox
	helper string // path of mischief on the host

	base     string // directory of the host with the canaries
	canary   string // HOST_CANARY
	secret   string // its content
	absent   string // HOST_WRITE_CANARY
	dir      string // HOST_DIR
	before   string // digest of base
	inSecret string // content of the file at canary's path inside
}

const home = "/home/user"

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.NeedBoundary(t, sandbox.GVisor)
	w := &world{Env: testenv.New(t), t: t, name: "paths", secret: "host-" + rand.Text(), inSecret: "inside-" + rand.Text()}
	base, err := os.MkdirTemp("", "bjv-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	os.Chmod(base, 0o755)
	w.base = base
	w.canary, w.absent, w.dir = filepath.Join(base, "canary"), filepath.Join(base, "absent"), filepath.Join(base, "dir")
	w.write(w.canary, w.secret)
	for _, n := range []string{"one", "two", "three", "f", "canary"} {
		w.write(filepath.Join(w.dir, n), w.secret+n)
	}
	w.before = w.digest()

	w.helper = filepath.Join(t.TempDir(), "mischief")
	cmd := exec.Command("go", "build", "-o", w.helper, "./mischief")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mischief: %v\n%s", err, out)
	}
	w.api, err = client.Dial(t.Context(), client.Options{
		StateDir: w.State, RuntimeDir: w.Run, Program: w.daemonProgram(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.api.Close)
	w.open(t)
	return w
}

// open makes the sandbox with what vectors expect in it.
func (w *world) open(t testing.TB) {
	t.Helper()
	w.create(t, w.name, sandbox.Spec{})
	w.put(t, w.name, home+"/ok.txt", "fine")
	w.put(t, w.name, w.canary, w.inSecret)
}

// daemonProgram starts the daemon in the environment of the test's programs,
// not in the test's own.
func (w *world) daemonProgram() string {
	w.Belljar("ls") // starts it
	return filepath.Join(w.Bin, "belljar")
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// create makes a sandbox with the helper in it, as /home/user/mischief.
func (w *world) create(t testing.TB, name string, spec sandbox.Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTime)
	defer cancel()
	spec.Name = name
	if _, err := w.api.Create(ctx, spec, nil); err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { w.api.Kill(context.WithoutCancel(ctx), name) }) // the daemon's end kills it too
	f, err := os.Open(w.helper)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.api.PutFile(ctx, name, home+"/mischief", "", 0o755, f, info.Size()); err != nil {
		t.Fatalf("the helper: %v", err)
	}
}

// put writes a file inside, as the user: what the canaries' paths lead to there
// is the user's own, so nothing but the boundary keeps it from the host's.
func (w *world) put(t testing.TB, name, path, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTime)
	defer cancel()
	if _, err := w.api.PutFile(ctx, name, path, "", 0o644, strings.NewReader(text), int64(len(text))); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// digest describes everything below base.
func (w *world) digest() string {
	h := sha256.New()
	err := filepath.WalkDir(w.base, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %v %d\n", p, info.Mode(), info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			h.Write(b)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// fill puts the paths of the fixtures into an argument. Names that stand for
// something in /tmp or in the host's root stand for what really lies there.
func (w *world) fill(arg string) string {
	for _, f := range []struct{ name, path string }{
		{"HOST_WRITE_CANARY", w.absent}, {"HOST_CANARY", w.canary}, {"HOST_DIR", w.dir},
	} {
		rel := strings.TrimPrefix(f.path, "/")
		for _, prefix := range []string{"tmp/", ""} {
			arg = strings.ReplaceAll(arg, prefix+f.name, rel)
		}
	}
	return arg
}
