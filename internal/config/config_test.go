package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestFind(t *testing.T) {
	long := "/" + strings.Repeat("x", maxRuntime)
	for _, tt := range []struct {
		name    string
		env     map[string]string
		uid     int
		home    string
		state   string
		runtime string // "": an error
	}{
		{"root", map[string]string{"XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/y"}, 0, "/root", "/var/lib/belljar", "/run/belljar"},
		{"a user", nil, 1000, "/home/u", "/home/u/.local/state/belljar", "/tmp/belljar-1000"},
		{"a user with XDG", map[string]string{"XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/y"}, 1000, "/home/u", "/x/belljar", "/y/belljar"},
		{"relative XDG is ignored, as its specification says", map[string]string{"XDG_STATE_HOME": "x", "XDG_RUNTIME_DIR": "y"}, 7, "/h", "/h/.local/state/belljar", "/tmp/belljar-7"},
		{"overrides", map[string]string{EnvState: "/a/", EnvRuntime: "/b/../c"}, 1000, "", "/a", "/c"},
		{"relative override", map[string]string{EnvState: "a"}, 1000, "/h", "", ""},
		{"no home", nil, 1000, "", "", ""},
		{"too long for a socket", map[string]string{EnvRuntime: long}, 1000, "/h", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Find(func(k string) string { return tt.env[k] }, tt.uid, tt.home)
			if tt.runtime == "" {
				if sandbox.KindOf(err) != sandbox.Invalid {
					t.Errorf("got %+v, %v, want invalid", d, err)
				}
				return
			}
			if err != nil || d.State != tt.state || d.Runtime != tt.runtime {
				t.Errorf("got %+v, %v, want %s and %s", d, err, tt.state, tt.runtime)
			}
		})
	}
}

func TestPrivate(t *testing.T) {
	base := t.TempDir()
	mine := filepath.Join(base, "a", "b")
	for range 2 {
		if err := Private(mine); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(mine); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v, want 0700", info.Mode(), err)
	}
	file, link, open := filepath.Join(base, "file"), filepath.Join(base, "link"), filepath.Join(base, "open")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mine, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, link, open} {
		if err := Private(dir); sandbox.KindOf(err) != sandbox.Denied {
			t.Errorf("%s: got %v, want denied", dir, err)
		}
	}
	if os.Geteuid() == 0 {
		foreign := filepath.Join(base, "foreign")
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(foreign, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		if err := Private(foreign); sandbox.KindOf(err) != sandbox.Denied {
			t.Errorf("another's directory: got %v, want denied", err)
		}
	}
	if err := CheckPrivate(filepath.Join(base, "none")); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("a missing one: got %v, want not_found", err)
	}
}
