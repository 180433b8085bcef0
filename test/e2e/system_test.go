package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// TestSystem: what takes disk is told, what nobody needs goes and nothing else, and
// what might take more than it may is refused while the sandbox runs on.
func TestSystem(t *testing.T) {
	needPython(t)
	e := setup(t)
	pythonTemplate(t, e)
	want(t, e.Belljar("template", "set", "py", "--start-command", counts, "--ready-command", "cat /tmp/secret"), 0)
	prepared := create(t, e, "prepared", "--template", "py")
	plain := create(t, e, "plain")
	want(t, plain.exec("sh", "-c", "head -c 8000000 /dev/urandom >/tmp/x"), 0)
	var stats []struct {
		DiskBytes int64 `json:"disk_bytes"`
	}
	if err := json.Unmarshal([]byte(want(t, e.Belljar("stats", "plain", "-o", "json"), 0).Stdout), &stats); err != nil || len(stats) != 1 ||
		stats[0].DiskBytes < 8000000 && stats[0].DiskBytes != 0 {
		t.Errorf("stats: got %+v, %v, want the bytes that were written (0: the host has no disk for them)", stats, err)
	}
	unnamed := strings.TrimSpace(want(t, e.Belljar("snapshot", "create", "plain"), 0).Stdout)
	want(t, e.Belljar("snapshot", "create", "plain", "kept"), 0)

	// Nothing that is in use goes.
	contains(t, want(t, e.Belljar("system", "prune", "--force"), 0).Stdout, "reclaimed 0B")
	out := want(t, e.Belljar("system", "df", "-v"), 0).Stdout
	contains(t, out, "template-image", unnamed, "it has no name (--all)", "kept:latest", "belljar.db")
	if strings.Contains(out, "no template would make it") || strings.Contains(out, "nothing starts from it") {
		t.Errorf("what is in use can go:\n%s", out)
	}
	contains(t, want(t, e.Belljar("system", "prune", "--all"), 2).Stderr, "--force")

	// The image of a template goes with its start command, the template with the
	// last that needs it.
	want(t, e.Belljar("template", "set", "py"), 0)
	contains(t, want(t, e.Belljar("system", "prune", "--force"), 0).Stdout, "template-image ")
	if left, err := os.ReadDir(filepath.Join(e.State, "prepared")); err != nil || len(left) > 0 {
		t.Errorf("prepared: %v, %v", left, err)
	}
	want(t, e.Belljar("kill", prepared.name), 0)
	out = want(t, e.Belljar("system", "prune", "--all", "--force"), 0).Stdout
	contains(t, out, "template py", "snapshot "+unnamed, "logs ", "reclaimed ")
	contains(t, want(t, e.Belljar("template", "ls"), 0).Stdout, "host")
	want(t, e.Belljar("snapshot", "verify", "kept"), 0)

	contains(t, want(t, e.Belljar("system", "quota", "--kept", "1M"), 0).Stdout, "1MiB")
	for _, argv := range [][]string{{"pause", "plain"}, {"snapshot", "create", "plain", "more"}} {
		contains(t, want(t, e.Belljar(argv...), 125).Stderr, "kept_bytes", "belljar system quota --kept")
	}
	want(t, plain.exec("cat", "/tmp/x"), 0)
	want(t, e.Belljar("system", "quota", "--kept", "0"), 0)
	want(t, e.Belljar("pause", "plain"), 0)
	want(t, plain.exec("cat", "/tmp/x"), 0)
}

// TestPruneAsks: on a terminal it shows what would go, and does what it is told.
func TestPruneAsks(t *testing.T) {
	e := setup(t)
	create(t, e, "gone")
	want(t, e.Belljar("kill", "gone"), 0)
	for _, tt := range []struct {
		answer, want string
		code         int
		gone         bool
	}{{"n\n", "nothing was removed", 125, false}, {"\n", "nothing was removed", 125, false}, {"y\n", "reclaimed", 0, true}} {
		s := testenv.OnTerminal(t, e.Command("system", "prune"))
		s.Expect("[y/N]")
		s.Send(tt.answer)
		s.Expect(tt.want)
		if code := s.Wait(); code != tt.code {
			t.Errorf("answered %q: exit code %d, want %d", tt.answer, code, tt.code)
		}
		contains(t, s.Output(), "gone", "its sandbox is dead")
		if left := strings.Contains(want(t, e.Belljar("ls", "--all"), 0).Stdout, "gone"); left == tt.gone {
			t.Errorf("answered %q: the record is there: %v", tt.answer, left)
		}
	}
}
