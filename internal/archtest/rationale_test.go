package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var requireLine = regexp.MustCompile(`(?m)^\s*(?:require )?([a-z0-9.-]+\.[a-z]+/\S+) v\S+( // indirect)?$`)

// directDependencies reads the modules that a go.mod requires directly.
func directDependencies(gomod string) []string {
	var out []string
	for _, m := range requireLine.FindAllStringSubmatch(gomod, -1) {
		if m[2] == "" {
			out = append(out, m[1])
		}
	}
	return out
}

// TestDependenciesAreExplained: each direct dependency has a row in
// docs/RATIONALE.md.
func TestDependenciesAreExplained(t *testing.T) {
	root := tree(t).Root
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	rationale, err := os.ReadFile(filepath.Join(root, "docs", "RATIONALE.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range directDependencies(string(gomod)) {
		if !strings.Contains(string(rationale), "`"+m+"`") {
			t.Errorf("%s is required directly and has no line in docs/RATIONALE.md: what it does for us, why this one, what its tracker warns about", m)
		}
	}
}

func TestDirectDependencies(t *testing.T) {
	got := directDependencies("module x\n\nrequire a.dev/b v1.0.0\n\nrequire (\n\tc.org/d v0.1.0\n\te.io/f v2.0.0 // indirect\n)\n")
	if strings.Join(got, " ") != "a.dev/b c.org/d" {
		t.Errorf("got %q, want the two without a mark", got)
	}
}
