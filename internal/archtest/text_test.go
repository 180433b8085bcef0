package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// textRule is a pattern that no file of ours may hold.
type textRule struct {
	Name    string
	Pattern *regexp.Regexp
	Files   func(path string) bool
	Reason  string
}

func goOrProse(p string) bool {
	return slices.Contains([]string{".go", ".md", ".sh", ".proto", ""}, path.Ext(p))
}

func notGoSum(p string) bool { return path.Base(p) != "go.sum" }

var textRules = []textRule{
	{
		"work-left", regexp.MustCompile(`\b(` + undone + `|FIX` + `ME|X` + `XX|HA` + `CK)\b`), goOrProse,
		"what is not done is an issue or a sentence in the documentation, not a mark that nobody reads",
	},
	{
		"stub", regexp.MustCompile(`(?i)\bnot ` + `implemented\b|\bun` + `implemented\b`), func(p string) bool { return path.Ext(p) == ".go" },
		"what a boundary cannot do is a sandbox.Unsupported error that says what would work",
	},
	{
		"machine-path", regexp.MustCompile(`(^|[^A-Za-z])/(wo` + `rk|fa` + `rm)/|/root/` + `go/|https?://(pro` + `xy|regi` + `stry|d` + `eb|s` + `um)[.]`), notGoSum,
		"paths and hosts of one machine mean nothing on another",
	},
}

// allowedText are places that a rule does not mean, with the reason.
var allowedText = map[string]string{
	"internal/gen/e2b/process/processconnect/process.connect.go stub":          "protoc-gen-connect-go writes a stub of each service that nothing uses",
	"internal/gen/e2b/filesystem/filesystemconnect/filesystem.connect.go stub": "protoc-gen-connect-go writes a stub of each service that nothing uses",
}

func checkText(f textFile) []string {
	var out []string
	for _, r := range textRules {
		if !r.Files(f.Path) {
			continue
		}
		for i, line := range strings.Split(f.Text, "\n") {
			if r.Pattern.MatchString(line) && allowedText[f.Path+" "+r.Name] == "" {
				out = append(out, fmt.Sprintf("%s:%d: %s: %s", f.Path, i+1, r.Name, r.Reason))
			}
		}
	}
	return out
}

const maxLines = 600

// longFiles may exceed maxLines, with the reason.
var longFiles = map[string]string{}

func checkLength(s *source) []string {
	if s.Test || s.Generated || longFiles[s.Path] != "" {
		return nil
	}
	if n := strings.Count(s.Text, "\n"); n > maxLines {
		return []string{fmt.Sprintf("%s has %d lines, more than %d: split it by what changes together", s.Path, n, maxLines)}
	}
	return nil
}

var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "types", "base", "misc", "shared"}

func checkPackageName(s *source) []string {
	name := strings.TrimSuffix(s.AST.Name.Name, "_test")
	if slices.Contains(emptyNames, name) {
		return []string{fmt.Sprintf("%s: package %s says nothing of what it is for: name it after what it provides", s.Path, name)}
	}
	return nil
}

func TestText(t *testing.T) {
	for _, f := range tree(t).Texts {
		report(t, checkText(f))
	}
}

func TestFileLength(t *testing.T) {
	for _, s := range tree(t).Sources {
		report(t, checkLength(s))
	}
}

func TestPackageNames(t *testing.T) {
	for _, s := range tree(t).Sources {
		report(t, checkPackageName(s))
	}
}

func TestTextRulesFire(t *testing.T) {
	for _, line := range []string{
		"// " + undone + ": later", "// FIX" + "ME", "return errors.New(\"not " + "implemented\")", "cd /wo" + "rk/main", "https://pro" + "xy.golang.org/",
	} {
		if got := checkText(textFile{"internal/x/x.go", "package x\n" + line + "\n"}); len(got) != 1 {
			t.Errorf("%q: got %q, want one finding", line, got)
		}
	}
	for _, line := range []string{"/workspace/x", "mktemp xxxXXXXXX", "// unaimed"} {
		if got := checkText(textFile{"internal/x/x.go", line}); len(got) != 0 {
			t.Errorf("%q: got %q, want no finding", line, got)
		}
	}
	long := planted(t, "internal/x/x.go", "package x\n"+strings.Repeat("\n", maxLines))
	if got := checkLength(long); len(got) != 1 {
		t.Errorf("length: got %q, want one finding", got)
	}
	if got := checkPackageName(planted(t, "internal/util/x.go", "package util")); len(got) != 1 {
		t.Errorf("name: got %q, want one finding", got)
	}
}
