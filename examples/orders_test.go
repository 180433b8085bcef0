package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestOrders runs the analysis outside a sandbox: generator, analysis and
// expected figures agree.
func TestOrders(t *testing.T) {
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("probe: this host has no /usr/bin/python3")
	}
	dir := t.TempDir()
	if err := makeOrders(nil, dir); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python, "csv/analyse.py", filepath.Join(dir, "orders.csv")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkOrders(nil, &outcome{stdout: string(out)}); err != nil {
		t.Error(err)
	}
}
