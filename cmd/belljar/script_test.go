package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/belljar-sh/belljar/internal/testenv"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestMain(m *testing.M) {
	testenv.CatchSignals()
	code := m.Run()
	testenv.Cleanup()
	os.Exit(code)
}

// TestScripts runs testdata/script/*.txt against the real programs. A script
// whose first line is "# needs gvisor" is skipped where the probe of that
// boundary says no.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	bin := testenv.Bin(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(string(text), "# needs gvisor\n") {
				testenv.NeedBoundary(t, sandbox.GVisor)
			}
			env := testenv.New(t)
			testscript.Run(t, testscript.Params{
				Files:               []string{file},
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup: func(e *testscript.Env) error {
					e.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
					e.Setenv("HOME", env.Home)
					e.Setenv("BIN", bin)
					e.Setenv("BELLJAR_STATE_DIR", env.State)
					e.Setenv("BELLJAR_RUNTIME_DIR", env.Run)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code},
			})
		})
	}
}

// code runs a program and checks its exit code: code 125 belljar run ...
// It leaves its output for stdout and stderr.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program [args...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("%v ended with %s, want %s", args[1:], got, args[0])
	}
}
