package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	citedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)(?:/[^`]*)?`")
	mdLink    = regexp.MustCompile(`\]\(([^)#\s]+)`)
	citedPath = regexp.MustCompile("`((?:internal|cmd|docs|test|bench|api|client|sandbox|examples|tools)/[A-Za-z0-9_./-]+)`")
)

// testNames lists every test, fuzz target and benchmark of the tree.
func testNames(sources []*source) map[string]bool {
	decl := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)\(`)
	out := map[string]bool{}
	for _, s := range sources {
		for _, m := range decl.FindAllStringSubmatch(s.Text, -1) {
			out[m[1]] = true
		}
	}
	return out
}

// TestDocumentsCiteWhatExists: a test, link or path that a document names is
// there. A promise whose test has been renamed is a promise without a test.
func TestDocumentsCiteWhatExists(t *testing.T) {
	r := tree(t)
	names := testNames(r.Sources)
	exists := func(rel string) bool {
		_, err := os.Stat(filepath.Join(r.Root, filepath.FromSlash(rel)))
		return err == nil
	}
	for _, f := range r.Texts {
		if path.Ext(f.Path) != ".md" {
			continue
		}
		for _, m := range citedTest.FindAllStringSubmatch(f.Text, -1) {
			if !names[m[1]] {
				t.Errorf("%s names %s, which is no test of this tree", f.Path, m[1])
			}
		}
		for _, m := range mdLink.FindAllStringSubmatch(f.Text, -1) {
			if !strings.Contains(m[1], "://") && !exists(path.Join(path.Dir(f.Path), m[1])) {
				t.Errorf("%s links to %s, which is not there", f.Path, m[1])
			}
		}
		for _, m := range citedPath.FindAllStringSubmatch(f.Text, -1) {
			if !strings.Contains(m[1], "NAME") && !exists(m[1]) {
				t.Errorf("%s names %s, which is not there", f.Path, m[1])
			}
		}
	}
}
