package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestSandboxEnd: a sandbox that ends under its command has a sentence and a
// hint for each reason, and the result says the same.
func TestSandboxEnd(t *testing.T) {
	for _, tc := range []struct {
		reason string
		exit   sandbox.Exit
		want   int
		says   string
	}{
		{sandbox.EndExited, sandbox.Exit{}, exitFailure, "the first process inside ended, and the sandbox with it"},
		{sandbox.EndFault, sandbox.Exit{}, exitFailure, "broke the protocol"},
		{sandbox.EndLost, sandbox.Exit{}, exitFailure, "keeper died"},
		{sandbox.EndFailed, sandbox.Exit{}, exitFailure, "could not be made"},
		{sandbox.EndKilled, sandbox.Exit{}, exitFailure, "the sandbox was killed"},
		{sandbox.EndFinished, sandbox.Exit{}, exitFailure, "first command ended"},
		{sandbox.EndStopped, sandbox.Exit{}, exitFailure, "the daemon was stopped"},
		{sandbox.EndOOM, sandbox.Exit{OOM: true}, exitKilled, "more memory than its limit"},
		{sandbox.EndTimeout, sandbox.Exit{TimedOut: true}, exitTimeout, "was over"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			tc.exit.Code, tc.exit.Signal, tc.exit.Reason = -1, 9, sandbox.EndedWith(tc.reason, "", time.Time{}).Reason
			a := &app{err: f}
			if got := a.status(tc.exit, 0, 0); int(got) != tc.want {
				t.Errorf("status = %d, want %d", got, tc.want)
			}
			said, err := os.ReadFile(f.Name())
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(said), tc.says) || !strings.Contains(string(said), "\nhint: ") {
				t.Errorf("it says %q, want %q and a hint", said, tc.says)
			}
			at := &attachment{}
			at.captureOutput(0)
			if res := newResult(&sandbox.Sandbox{}, nil, tc.exit, at); res.Exit.Status != tc.want {
				t.Errorf("the result has status %d, want %d", res.Exit.Status, tc.want)
			}
		})
	}
}
