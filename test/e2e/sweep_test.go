package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/keeper/launch"
)

// TestNextRunSweeps: a run whose keeper was killed along with it leaves a
// directory and a hold on its template; the next run of the same user removes
// both, and no daemon is needed for it.
func TestNextRunSweeps(t *testing.T) {
	e := setup(t)
	cmd := e.Command("run", "--", "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	holds := filepath.Join(e.State, "templates", ".host", "*", "holds", "*")
	written := func() bool { // an empty one keeps its minute
		held, _ := filepath.Glob(holds)
		if len(held) == 0 {
			return false
		}
		b, err := os.ReadFile(held[0])
		return err == nil && len(b) > 0
	}
	for end := time.Now().Add(30 * time.Second); !written(); {
		if time.Now().After(end) {
			t.Fatal("the run does not hold its template")
		}
		<-time.After(5 * time.Millisecond)
	}
	owners, _ := filepath.Glob(filepath.Join(e.Run, "keepers", "*", "owner.json"))
	if len(owners) != 1 {
		t.Fatalf("keepers: %v", owners)
	}
	b, err := os.ReadFile(owners[0])
	if err != nil {
		t.Fatal(err)
	}
	var owner struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(b, &owner); err != nil || owner.PID <= 1 {
		t.Fatalf("owner %s: %v", b, err)
	}
	cmd.Process.Signal(syscall.SIGSTOP) // it would reap what its keeper leaves
	if err := syscall.Kill(owner.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()

	for end := time.Now().Add(30 * time.Second); launch.Alive(filepath.Dir(owners[0])); {
		if time.Now().After(end) {
			t.Fatal("the killed keeper still holds its lock")
		}
		<-time.After(5 * time.Millisecond)
	}
	r := want(t, e.Belljar("run", "--", "true"), 0)
	if left, _ := filepath.Glob(filepath.Join(e.Run, "keepers", "*")); len(left) > 0 {
		t.Errorf("keepers are left: %v\n%s", left, r.Stderr)
	}
	if left, _ := filepath.Glob(holds); len(left) > 0 {
		t.Errorf("holds are left: %v", left)
	}
}
