package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestAncestors: nobody but root and the caller can put another directory in
// the place of ours. at is the path that the error names, "" for none.
func TestAncestors(t *testing.T) {
	for _, tt := range []struct {
		name string
		root bool // needs root
		make func(t *testing.T, base string)
		dir  string
		at   string
	}{
		{"plain", false, dirs("a", 0o755), "a/b", ""},
		{"missing", false, dirs("a", 0o755), "x/y/z", ""},
		{"writable by all", false, dirs("a", 0o777), "a/b", "a"},
		{"writable by all, higher up", false, dirs("a", 0o777, "a/b", 0o755, "a/b/c", 0o755), "a/b/c/d", "a"},
		{"writable by all and sticky", false, dirs("a", 0o777|os.ModeSticky), "a/b", ""},
		{"the directory itself is not looked at", false, dirs("a", 0o777), "a", ""},
		{"writable by a group of many", true, func(t *testing.T, base string) {
			dirs("a", 0o775)(t, base)
			chown(t, base, "a", 0, 100)
		}, "a/b", "a"},
		{"writable by the caller's own group", true, dirs("a", 0o775), "a/b", ""},
		{"another's", true, func(t *testing.T, base string) {
			dirs("a", 0o755)(t, base)
			chown(t, base, "a", 1234, 1234)
		}, "a/b", "a"},
		{"another's in a sticky one", true, func(t *testing.T, base string) {
			dirs("a", 0o777|os.ModeSticky, "a/b", 0o700)(t, base)
			chown(t, base, "a/b", 1234, 1234)
		}, "a/b/c", "a/b"},
		{"through a link", false, func(t *testing.T, base string) {
			dirs("a", 0o777, "a/b", 0o755)(t, base)
			link(t, base, "a/b", "l")
		}, "l/c", "a"},
		{"through a link and back", false, func(t *testing.T, base string) {
			dirs("a", 0o755, "a/b", 0o755, "w", 0o777)(t, base)
			link(t, base, "../../w/..", "a/b/l")
		}, "a/b/l/c", "w"},
		{"through another's link", true, func(t *testing.T, base string) {
			dirs("s", 0o777|os.ModeSticky, "a", 0o755)(t, base)
			link(t, base, "../a", "s/l")
			chown(t, base, "s/l", 1234, 1234)
		}, "s/l/b", "s/l"},
		{"a link to itself", false, func(t *testing.T, base string) { link(t, base, "l", "l") }, "l/b", "l/b"},
		{"below a file", false, func(t *testing.T, base string) {
			if err := os.WriteFile(filepath.Join(base, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "f/b/c", "f"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("probe: not root, so the test cannot make a directory another's")
			}
			base := t.TempDir()
			if err := CheckAncestors(filepath.Join(base, "x")); err != nil {
				t.Skip("probe: the directory of the test is not safe itself: ", err)
			}
			tt.make(t, base)
			dir := filepath.Join(base, tt.dir)
			err := CheckAncestors(dir)
			if tt.at == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			e := sandbox.AsError(err)
			if e == nil || e.Value != filepath.Join(base, tt.at) {
				t.Fatalf("got %v, want an error that names %s", err, tt.at)
			}
			if e.Kind == sandbox.Denied && !strings.Contains(e.Message, dir) {
				t.Errorf("%v does not tell of what", err)
			}
			if err := Private(dir); err == nil {
				t.Error("it was made")
			}
			if _, err := os.Lstat(dir); err == nil && tt.dir != "a/b/c/d" {
				t.Error("it is there")
			}
		})
	}
}

// TestAncestorsPartial: in a user namespace without root, root's directories
// appear as nobody's.
func TestAncestorsPartial(t *testing.T) {
	w := &way{me: 1000, partial: true}
	for uid, want := range map[int]bool{0: true, 1000: true, overflowUID: true, 1001: false} {
		if got := w.trusts(uid); got != want {
			t.Errorf("user %d: %v", uid, got)
		}
	}
	if w.partial = false; w.trusts(overflowUID) {
		t.Error("nobody is trusted where there is such a user")
	}
}

// dirs makes directories: pairs of name and mode.
func dirs(pairs ...any) func(t *testing.T, base string) {
	return func(t *testing.T, base string) {
		for n := 0; n < len(pairs); n += 2 {
			path := filepath.Join(base, pairs[n].(string))
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			mode, ok := pairs[n+1].(os.FileMode)
			if !ok {
				mode = os.FileMode(pairs[n+1].(int))
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func link(t *testing.T, base, target, name string) {
	t.Helper()
	if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, base, name string, uid, gid int) {
	t.Helper()
	if err := syscall.Lchown(filepath.Join(base, name), uid, gid); err != nil {
		t.Fatal(err)
	}
}
