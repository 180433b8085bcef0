package archtest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// smallPrograms must start in milliseconds: one is typed by people, the other
// is PID 1 of every sandbox.
var smallPrograms = []string{"belljar", "belljar-guest"}

// initWork is what one package does before main.
type initWork struct {
	Package       string
	Bytes, Allocs int
}

// Work below both of these is not listed: every package with a variable has
// some.
const (
	minInitBytes  = 2048
	minInitAllocs = 20
)

// slack is what a figure may grow by before it is worth a look: allocations
// before main differ a little between processors and Go's patch releases.
func slack(n int) int { return n + n/5 + 16 }

var initLine = regexp.MustCompile(`^init (\S+) @.* ms, .* ms clock, (\d+) bytes, (\d+) allocs$`)

// parseInitTrace reads what GODEBUG=inittrace=1 writes.
func parseInitTrace(out []byte) []initWork {
	var work []initWork
	for line := range strings.Lines(string(out)) {
		m := initLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		b, _ := strconv.Atoi(m[2])
		a, _ := strconv.Atoi(m[3])
		if b >= minInitBytes || a >= minInitAllocs {
			work = append(work, initWork{m[1], b, a})
		}
	}
	slices.SortFunc(work, func(a, b initWork) int { return cmp.Compare(a.Package, b.Package) })
	return work
}

// compareInit tells what has grown. Less than the golden is no failure, but a
// package that is gone is: a golden that lists it hides its return.
func compareInit(got, want []initWork) []string {
	var out []string
	byName := map[string]initWork{}
	for _, w := range want {
		byName[w.Package] = w
	}
	for _, g := range got {
		w, ok := byName[g.Package]
		delete(byName, g.Package)
		switch {
		case !ok && (g.Bytes > slack(minInitBytes) || g.Allocs > slack(minInitAllocs)):
			out = append(out, fmt.Sprintf("%s now does work before main: %d bytes, %d allocations", g.Package, g.Bytes, g.Allocs))
		case ok && (g.Bytes > slack(w.Bytes) || g.Allocs > slack(w.Allocs)):
			out = append(out, fmt.Sprintf("%s: %d bytes and %d allocations before main, were %d and %d", g.Package, g.Bytes, g.Allocs, w.Bytes, w.Allocs))
		}
	}
	for name, w := range byName {
		if w.Bytes > slack(minInitBytes) || w.Allocs > slack(minInitAllocs) {
			out = append(out, name+" does no more work before main: run with -update")
		}
	}
	slices.Sort(out)
	return out
}

// goTool runs the go command at the root of the repository, as the Makefile
// does, so that the build cache is shared with it.
func goTool(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = tree(t).Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

func haveProgram(t *testing.T, name string) bool {
	_, err := os.Stat(filepath.Join(tree(t).Root, "cmd", name, "main.go"))
	return err == nil
}

func TestInitWork(t *testing.T) {
	for _, name := range smallPrograms {
		t.Run(name, func(t *testing.T) {
			if !haveProgram(t, name) {
				t.Skipf("probe: there is no cmd/%s", name)
			}
			bin := filepath.Join(t.TempDir(), name)
			goTool(t, "build", "-p", "2", "-ldflags", "-s -w", "-o", bin, "./cmd/"+name)
			got := parseInitTrace(runTraced(t, bin))
			if len(got) == 0 {
				t.Fatal("the program printed no init trace")
			}
			golden := filepath.Join("testdata", "init", name+".txt")
			if *update {
				writeInit(t, golden, got)
			}
			for _, f := range compareInit(got, readInit(t, golden)) {
				t.Errorf("%s\nevery start pays for it; if it is worth that, run go test ./internal/archtest -run InitWork -update", f)
			}
		})
	}
}

// runTraced runs `bin version` and returns its standard error. The program's
// verdict does not matter: packages are initialised before main.
func runTraced(t *testing.T, bin string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stderr.Bytes()
}

const initHeader = "# Packages with work before main: package, bytes, allocations. Kept by TestInitWork.\n"

func writeInit(t *testing.T, path string, work []initWork) {
	t.Helper()
	var b strings.Builder
	b.WriteString(initHeader)
	for _, w := range work {
		fmt.Fprintf(&b, "%s %d %d\n", w.Package, w.Bytes, w.Allocs)
	}
	writeGolden(t, path, b.String())
}

func readInit(t *testing.T, path string) []initWork {
	t.Helper()
	var out []initWork
	for _, line := range readGolden(t, path) {
		var w initWork
		if _, err := fmt.Sscan(line, &w.Package, &w.Bytes, &w.Allocs); err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		out = append(out, w)
	}
	return out
}

func writeGolden(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readGolden returns the lines of a golden file without comments.
func readGolden(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// TestLinkedPackages: what the small programs link, third parties by name. A
// new line is a decision, so it is a line in a review.
func TestLinkedPackages(t *testing.T) {
	for _, name := range smallPrograms {
		t.Run(name, func(t *testing.T) {
			if !haveProgram(t, name) {
				t.Skipf("probe: there is no cmd/%s", name)
			}
			golden := filepath.Join("testdata", "linked", name+".txt")
			got := notStd(strings.Fields(string(goTool(t, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/"+name))))
			if *update {
				writeGolden(t, golden, "# Packages that the program links, the standard library left out. Kept by TestLinkedPackages.\n"+strings.Join(got, "\n")+"\n")
			}
			want := readGolden(t, golden)
			for _, p := range got {
				if !slices.Contains(want, p) {
					t.Errorf("%s now links %s: if that is meant, run go test ./internal/archtest -run LinkedPackages -update", name, p)
				}
				if strings.HasPrefix(p, "gvisor.dev/") || strings.HasPrefix(p, "k8s.io/") {
					t.Errorf("%s links %s, which costs every start milliseconds: it belongs in belljar-engine", name, p)
				}
			}
			for _, p := range want {
				if !slices.Contains(got, p) {
					t.Errorf("%s links %s no longer: run with -update", name, p)
				}
			}
		})
	}
}

func notStd(pkgs []string) []string {
	slices.Sort(pkgs)
	return slices.Compact(pkgs)
}

func TestCompareInit(t *testing.T) {
	trace := []byte("init runtime @0.01 ms, 0.02 ms clock, 0 bytes, 0 allocs\n" +
		"init a/b @0.1 ms, 0.2 ms clock, 8192 bytes, 3 allocs\nprogram output\n" +
		"init c @0.1 ms, 0.2 ms clock, 100 bytes, 400 allocs\n")
	got := parseInitTrace(trace)
	if want := []initWork{{"a/b", 8192, 3}, {"c", 100, 400}}; !slices.Equal(got, want) {
		t.Fatalf("parse: got %v, want %v", got, want)
	}
	tests := []struct {
		name   string
		golden []initWork
		want   int
	}{
		{"equal", got, 0},
		{"a little more than before", []initWork{{"a/b", 8000, 3}, {"c", 100, 390}}, 0},
		{"new package", []initWork{{"c", 100, 400}}, 1},
		{"grown", []initWork{{"a/b", 4096, 3}, {"c", 100, 400}}, 1},
		{"gone", append(slices.Clone(got), initWork{"d", 9000, 1}), 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if f := compareInit(got, tt.golden); len(f) != tt.want {
				t.Errorf("got %q, want %d findings", f, tt.want)
			}
		})
	}
}
