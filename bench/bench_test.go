package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/bench/pattern"
)

func TestChoose(t *testing.T) {
	all := new(env).cases()
	chosen, err := choose(all, []string{"idle", "version"})
	if err != nil || len(chosen) != 2 || chosen[0].Name != "idle" || chosen[1].Name != "version" {
		t.Errorf("got %v, %v; want idle and version in this order", chosen, err)
	}
	if _, err := choose(all, []string{"nonsense"}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v, want an error that names the case", err)
	}
	if chosen, err := choose(all, nil); err != nil || len(chosen) != len(all) {
		t.Errorf("got %d cases, %v; want all", len(chosen), err)
	}
}

// TestSpecificationNamesCases: every case stands in SPECIFICATION.md by the
// command that runs it.
func TestSpecificationNamesCases(t *testing.T) {
	text, err := os.ReadFile("../SPECIFICATION.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range new(env).cases() {
		if !strings.Contains(string(text), "`make bench BENCH="+c.Name+"`") {
			t.Errorf("SPECIFICATION.md does not name case %s", c.Name)
		}
	}
}

func TestMissingPrograms(t *testing.T) {
	if _, err := run(t.Context(), []string{"--bin", t.TempDir(), "version"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("got %v, want an error that tells how to build the programs", err)
	}
}

func TestPattern(t *testing.T) {
	var a, b bytes.Buffer
	for _, w := range []struct {
		to *bytes.Buffer
		n  int64
	}{{&a, 1 << 20}, {&b, 1<<20 + 7}} {
		if err := pattern.Write(w.to, w.n); err != nil {
			t.Fatal(err)
		}
		if int64(w.to.Len()) != w.n {
			t.Errorf("got %d bytes, want %d", w.to.Len(), w.n)
		}
	}
	if !bytes.HasPrefix(b.Bytes(), a.Bytes()) {
		t.Error("a shorter pattern is not the beginning of a longer one")
	}
	if slices.ContainsFunc(a.Bytes(), func(c byte) bool { return c < ' ' || c > '~' }) {
		t.Error("the pattern has bytes that a terminal may change")
	}
	if half := a.Len() / 2; bytes.Equal(a.Bytes()[:half], a.Bytes()[half:]) {
		t.Error("the pattern repeats itself")
	}
}
