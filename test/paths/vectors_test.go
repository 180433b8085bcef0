package paths

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// EnvVectors names a directory with more vector files.
const EnvVectors = "BELLJAR_VECTORS"

// file is one file of vectors.
type file struct {
	Version int      `json:"version"`
	Vectors []vector `json:"vectors"`
}

// vector is a request and what must come of it.
type vector struct {
	ID      string  `json:"id"`
	Class   string  `json:"class"`
	Request request `json:"request"`
	Expect  expect  `json:"expect"`
	Why     string  `json:"why"`
}

type request struct {
	Op  string `json:"op"`
	Arg string `json:"arg"`
}

// expect is the verdict and what else must hold. Canaries and the state of the
// host are checked after every vector, whether it names them or not.
type expect struct {
	Verdict   string   `json:"verdict"`
	MaxMS     int64    `json:"max_ms"`
	MaxRSSMB  int64    `json:"max_rss_delta_mb"`
	Files     int      `json:"files"`
	AuditPath string   `json:"audit_path"`
	Lines     int      `json:"audit_lines"`
	Errors    []string `json:"allowed_errors"`

	CanaryRead    *bool `json:"host_canary_read"`
	CanaryWritten *bool `json:"host_canary_written"`
	DirIntact     *bool `json:"host_dir_intact"`
	HostUnchanged *bool `json:"host_unchanged"`
	OldIntact     *bool `json:"old_content_intact"`
}

func load(t *testing.T, path string) []vector {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if f.Version != 1 || len(f.Vectors) == 0 {
		t.Fatalf("%s: version %d with %d vectors, want version 1 and at least one", path, f.Version, len(f.Vectors))
	}
	return f.Vectors
}

func vectorFiles(t *testing.T) []string {
	t.Helper()
	dirs := []string{"testdata"}
	if d := os.Getenv(EnvVectors); d != "" {
		dirs = append(dirs, d)
	}
	var out []string
	for _, d := range dirs {
		found, err := filepath.Glob(filepath.Join(d, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Fatalf("no *.json in %s", d)
		}
		out = append(out, found...)
	}
	return out
}

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.Cleanup()
	os.Exit(code)
}

// TestVectors runs every vector of every file.
func TestVectors(t *testing.T) {
	files := vectorFiles(t)
	w := newWorld(t)
	seen := map[string]bool{}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		for seen[name] {
			name += "+"
		}
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			for _, v := range load(t, f) {
				t.Run(v.ID, func(t *testing.T) { run(t, w, v) })
			}
		})
	}
}

// run runs one vector and prints its line.
func run(t *testing.T, w *world, v vector) {
	c := w.begin(t, v)
	scenario, reason := find(v)
	switch {
	case scenario == nil && reason != "":
		fmt.Printf("%-20s %-8s want %-20s not applicable: %s\n", v.ID, "n/a", v.Expect.Verdict, reason)
		t.Skipf("probe: not applicable: %s", reason)
	case scenario == nil:
		t.Fatalf("%s: the runner has no scenario for op %q with argument %q", v.ID, v.Request.Op, v.Request.Arg)
	}
	defer c.revive()
	scenario(c)
	c.judge()
	result := "ok"
	if t.Failed() {
		result = "FAILED"
	}
	fmt.Printf("%-20s %-8s want %-20s %s\n", v.ID, result, v.Expect.Verdict, strings.Join(c.lines(), "; "))
}

// TestVectorsHaveScenarios: every vector of testdata either has a scenario or a
// reason why it has none, on hosts without a boundary too.
func TestVectorsHaveScenarios(t *testing.T) {
	for _, f := range vectorFiles(t) {
		for _, v := range load(t, f) {
			if s, reason := find(v); s == nil && reason == "" {
				t.Errorf("%s: no scenario for op %q with argument %q", v.ID, v.Request.Op, v.Request.Arg)
			}
			if !slices.Contains(verdicts(), v.Expect.Verdict) {
				t.Errorf("%s: unknown verdict %q", v.ID, v.Expect.Verdict)
			}
		}
	}
}

// TestUnknownVectorFails: what the runner does not understand does not pass.
func TestUnknownVectorFails(t *testing.T) {
	for _, r := range []request{{"levitate", "x"}, {"read", "something that only a person understands"}, {"extract", "a cursed archive"}} {
		if s, reason := find(vector{Request: r}); s != nil || reason != "" {
			t.Errorf("%+v has a scenario or a reason: %q", r, reason)
		}
	}
	if bytes.Contains([]byte(fmt.Sprint(verdicts())), []byte("whatever")) {
		t.Error("an unknown verdict is known")
	}
}
