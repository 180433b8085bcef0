package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestKilledExecTakesItsCommandAlong: after a kill -9 of `belljar exec` the
// command that it ran goes, with all that it started; a detached one stays.
func TestKilledExecTakesItsCommandAlong(t *testing.T) {
	b := create(t, setup(t), "work")
	want(t, b.exec("-d", "--", "sleep", "7301"), 0)
	cmd := b.Command("exec", b.name, "--", "sh", "-c", "setsid sleep 7302 & exec sleep 7302")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running := func(n string) bool { return b.left("7302") == n }
	await(t, 20*time.Second, "the command runs", func() bool { return running("2") })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // it was killed
	await(t, 90*time.Second, "the command has gone", func() bool { return running("0") })
	if n := b.left("7301"); n != "1" {
		t.Errorf("%s of the detached commands live, want 1", n)
	}
}

// await looks until something is so.
func await(t *testing.T, most time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !is(); {
		if time.Now().After(end) {
			t.Fatalf("after %v it is not so that %s", most, what)
		}
		<-time.After(200 * time.Millisecond)
	}
}
