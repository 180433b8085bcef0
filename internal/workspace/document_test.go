package workspace

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list into docs/WORKSPACE.md")

// document is where people read the list.
const document = "../../docs/WORKSPACE.md"

const (
	listBegin = "<!-- list: go test ./internal/workspace -run TestDocument -update -->\n"
	listEnd   = "<!-- end of list -->\n"
)

// TestDocument: the documented list is the one that is enforced.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), listBegin)
	_, after, ok2 := strings.Cut(rest, listEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no list", document)
	}
	var list strings.Builder
	list.WriteString("| name | what is done | because |\n|---|---|---|\n")
	for _, r := range Rules() {
		fmt.Fprintf(&list, "| `%s` | %s | %s |\n", r.Pattern, r.Class, r.Reason)
	}
	want := before + listBegin + list.String() + listEnd + after
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run the test with -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
