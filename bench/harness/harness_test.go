package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestResults(t *testing.T) {
	cases := []Case{
		{Name: "good", Run: func(_ context.Context, r *Result) error { r.AtMost("x", 0.8, 1, "times"); return nil }},
		{Name: "slow", Run: func(_ context.Context, r *Result) error { r.AtLeast("y", 0.2, 0.35, "times"); return nil }},
		{Name: "broken", Run: func(context.Context, *Result) error { return io.EOF }},
		{Name: "missing", Run: func(context.Context, *Result) error { return fmt.Errorf("%w: probe: no gVisor", ErrUnavailable) }},
	}
	results := Run(t.Context(), cases, io.Discard)
	var kept []bool
	for _, r := range results {
		kept = append(kept, r.Kept())
	}
	if want := []bool{true, false, false, true}; !slices.Equal(kept, want) {
		t.Errorf("kept: got %v, want %v", kept, want)
	}
	var table, asJSON bytes.Buffer
	if err := WriteTable(&table, results); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kept: at most 1", "BROKEN: at least 0.35", "EOF", "no gVisor"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, table.String())
		}
	}
	if err := WriteJSON(&asJSON, results); err != nil {
		t.Fatal(err)
	}
	var back []Result
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || len(back) != 4 || back[1].Promises[0].Kept {
		t.Errorf("JSON: got %+v, %v", back, err)
	}
}

// TestHoldings plants one of each thing that can be left and takes it away.
func TestHoldings(t *testing.T) {
	programs, root := t.TempDir(), t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("probe: no sleep(1) on this host")
	}
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(programs, "planted")
	if err := os.WriteFile(ours, data, 0o755); err != nil {
		t.Fatal(err)
	}
	w := Watched{Programs: programs, Roots: []string{root}}
	before, err := w.Take()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), ours, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "left")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	during, err := w.Take()
	if err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprintf("process %d planted", cmd.Process.Pid)
	left := during.Since(before)
	if !left[process] || !left["file "+file] {
		t.Errorf("got %q, want %q and the planted file", left.Names(), process)
	}
	if rss := RSS(cmd.Process.Pid); rss <= 0 {
		t.Errorf("RSS: got %d, want more than nothing", rss)
	}
	cmd.Process.Kill()
	cmd.Wait()
	os.Remove(file)
	after, err := w.Take()
	if err != nil {
		t.Fatal(err)
	}
	if still := left.Still(after); still[process] || still["file "+file] {
		t.Errorf("got %q, want nothing left of what was planted", still.Names())
	}
}

func TestTreeAndPSS(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 600 & wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Skip("probe: no shell on this host")
	}
	defer cmd.Wait()
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	procs, err := Processes()
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree(procs, os.Getpid())
	if !slices.ContainsFunc(tree, func(p Process) bool { return p.PID == cmd.Process.Pid }) {
		t.Errorf("the tree of this process lacks its child %d", cmd.Process.Pid)
	}
	if pss, err := PSS(tree); err != nil || pss < 1<<20 {
		t.Errorf("PSS: got %d, %v; want at least a megabyte", pss, err)
	}
}
