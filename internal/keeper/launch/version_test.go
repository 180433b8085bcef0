package launch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// otherGVisorEnv names another version of the gVisor module, of its go branch,
// or a directory with its source, that a second engine is built with. That takes
// minutes.
const otherGVisorEnv = "BELLJAR_TEST_OTHER_GVISOR"

// buildWith builds engine and guest with another version of gVisor.
func buildWith(t *testing.T, version string) (bin string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin = filepath.Join(dir, "bin")
	for _, name := range []string{"mod", "sum"} {
		b, err := os.ReadFile(filepath.Join(root, "go."+name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "other."+name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	choose := []string{"get", "-modfile=" + filepath.Join(dir, "other.mod"), "gvisor.dev/gvisor@" + version}
	if filepath.IsAbs(version) {
		choose = []string{"mod", "edit", "-replace=gvisor.dev/gvisor=" + version, filepath.Join(dir, "other.mod")}
	}
	mod := "-modfile=" + filepath.Join(dir, "other.mod")
	for _, args := range [][]string{
		choose,
		{"build", mod, "-p", "1", "-o", bin + "/", "./cmd/belljar-engine", "./cmd/belljar-guest"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for d := bin; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // the roles own nothing
			t.Fatal(err)
		}
	}
	return bin
}

// TestOtherGVisor: what one version of gVisor has saved another does not
// restore, and says which they are.
func TestOtherGVisor(t *testing.T) {
	version := os.Getenv(otherGVisorEnv)
	if version == "" {
		t.Skipf("probe: %s names no other version of gVisor", otherGVisorEnv)
	}
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	ours := regexp.MustCompile(`gvisor\.dev/gvisor (\S+)`).FindStringSubmatch(string(mod))[1]
	one, other := newSaver(t, ""), newSaverOf(t, buildWith(t, version), "")
	other.req.Root = one.req.Root
	for _, pair := range [][2]*saver{{one, other}, {other, one}} {
		from, to := pair[0], pair[1]
		from.create("", 1)
		image := from.save(false, 2)
		req := *to.req
		req.Image, req.Hello.Generation = image, 3
		_, err := to.Create(t.Context(), &req)
		e := sandbox.AsError(err)
		if sandbox.KindOf(err) != sandbox.Conflict || e.Field != "gvisor" || !strings.Contains(e.Message, ours) || !strings.Contains(e.Message, version) || e.Hint == "" {
			t.Errorf("got %+v", e)
		}
		from.create(image, 4) // its own it restores
		if _, err := from.Delete(t.Context(), from.req.ID); err != nil {
			t.Error(err)
		}
	}
}
