package workspace

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFold(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"main.go", "main.go"},
		{".git", ".git"},
		{".GIT", ".git"},
		{".Git ", ".git"},
		{".git. . .", ".git"},
		{".g\u200cit", ".git"},
		{"\ufeff.git", ".git"},
		{".g\u0131t", ".git"},
		{".v\u017fcode", ".vscode"},
		{"con\ufb01g", "config"},
		{"hoo\u212as", "hooks"},
		{".ba\u017fhrc", ".bashrc"},
		{"git~1", ".git"},
		{"GIT~2", ".git"},
		{"git~10", "git~10"},
		{".git::$INDEX_ALLOCATION", ".git"},
		{".git:stream", ".git"},
		{":x", ":x"},
		{"...", "..."},
		{"", ""},
		{"\xff\xfe", "\xff\xfe"},
		{"É.txt", "é.txt"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			if got := Fold(tt.in); got != tt.want {
				t.Errorf("Fold(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestZones(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path  string
		kind  Kind
		class Class
	}{
		{"main.go", Ordinary, Unlisted},
		{"ENVRC~1", Name, Locked},
		{"a/vscode~2/tasks.json", Name, Locked},
		{"MCP~1.JSO", Name, Locked},
		{"BASH_P~1", Name, Locked},
		{"CONFIG~1/fish", Name, Locked},
		{".config/POWERS~1", Name, Locked},
		{"CARGO~1/CONFIG~1.TOM", Name, Locked},
		{"ANY~1.COD", Name, Locked},
		{"MISELO~1.TOM", Name, Locked},
		{"MISE~1.TOM", Name, Locked},
		{"ENV~1", Ordinary, Watched},
		{"ENVRC~", Ordinary, Unlisted},
		{"ENVRC~1~", Ordinary, Unlisted},
		{"main~1.go", Ordinary, Unlisted},
		{"main.go~1", Ordinary, Unlisted},
		{"opencode~1", Ordinary, Unlisted},
		{".git/COMMON~1", GitCommon, Locked},
		{".git/CONFIG~1.WOR", GitConfig, Locked},
		{".git/CONFIG~1.LOC", GitLock, Locked},
		{"mise.local.toml", Name, Locked},
		{".mise.local.toml", Name, Locked},
		{"mise.production.local.toml", Name, Locked},
		{".mise.ci.toml", Name, Locked},
		{"mise..toml", Ordinary, Unlisted},
		{"mise/config.toml", Name, Locked},
		{"mise/main.go", Ordinary, Unlisted},
		{".config/mise/conf.d/x.toml", Name, Locked},
		{".config/mise.ci.toml", Name, Locked},
		{".local/share/nvim/site/plugin/x.lua", Name, Locked},
		{"", Ordinary, Unlisted},
		{".envrc", Name, Locked},
		{"a/b/.envrc", Name, Locked},
		{".ENVRC", Name, Locked},
		{".envrc.example", Ordinary, Unlisted},
		{".vscode", Name, Locked},
		{".vscode/tasks.json", Name, Locked},
		{"sub/.Vscode/deep/er", Name, Locked},
		{"x.code-workspace", Name, Locked},
		{"x.CODE-WORKSPACE", Name, Locked},
		{".claude/settings.json", Name, Locked},
		{".mcp.json", Name, Locked},
		{".bashrc", Name, Locked},
		{".npmrc", Name, Locked},
		{"node_modules/a/.npmrc", Ordinary, Unlisted},
		{"node_modules/a/.vscode/x", Ordinary, Unlisted},
		{"lib/site-packages/.idea/x", Ordinary, Unlisted},
		{".config", Ordinary, Unlisted},
		{".config/other", Ordinary, Unlisted},
		{".config/fish/config.fish", Name, Locked},
		{".config/.config/git/config", Name, Locked},
		{".config/.vscode", Name, Locked},
		{".cargo/registry/x", Ordinary, Unlisted},
		{".cargo/config.toml", Name, Locked},
		{".github/workflows/ci.yml", Ordinary, Watched},
		{".github/.vscode/x", Name, Locked},
		{"AGENTS.md", Ordinary, Watched},
		{"agents.md", Ordinary, Watched},

		{".git", GitDir, Watched},
		{"a/.GIT", GitDir, Watched},
		{"node_modules/a/.git", GitDir, Watched},
		{".git/HEAD", Ordinary, Unlisted},
		{".git/index.lock", Ordinary, Unlisted},
		{".git/config", GitConfig, Locked},
		{".git/Config", GitConfig, Locked},
		{"node_modules/a/.git/config", GitConfig, Locked},
		{".git/config.lock", GitLock, Locked},
		{".git/config.worktree", GitConfig, Locked},
		{".git/hooks", GitHooks, Locked},
		{".git/hooks/pre-commit", GitHook, Locked},
		{".git/hooks/a/b", GitHook, Locked},
		{".git/hooks/config.worktree", GitHook, Locked},
		{".git/commondir", GitCommon, Locked},
		{".git/refs/heads/config", Ordinary, Unlisted},
		{".git/refs/heads/hooks/x", Ordinary, Unlisted},
		{".git/logs/refs/heads/config", Ordinary, Unlisted},
		{".git/info/exclude", Ordinary, Unlisted},
		{".git/modules/a/config", GitConfig, Locked},
		{".git/modules/a/b/config", GitConfig, Locked},
		{".git/modules/a/hooks/post-checkout", GitHook, Locked},
		{".git/modules/a/refs/heads/config", Ordinary, Unlisted},
		{".git/modules/a/modules/b/config", GitConfig, Locked},
		{".git/modules/a/commondir", GitCommon, Locked},
		{".git/worktrees/w/HEAD", Ordinary, Unlisted},
		{".git/worktrees/w/commondir", Ordinary, Unlisted},
		{".git/worktrees/w/config.worktree", GitConfig, Locked},
		{"fake/config.worktree", GitConfig, Locked},
		{"node_modules/fake/config.worktree", GitConfig, Locked},
		{".git/rebase-merge/git-rebase-todo", Ordinary, Unlisted},
		{".vscode/config.worktree", Name, Locked},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			z := At(tt.path)
			if z.Kind() != tt.kind || z.Class() != tt.class {
				t.Errorf("At(%q) = kind %d, %v; want kind %d, %v", tt.path, z.Kind(), z.Class(), tt.kind, tt.class)
			}
		})
	}
}

// TestRules holds the list to its form: each pattern once, each with a reason,
// and each matched by itself at any depth.
func TestRules(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, r := range Rules() {
		if seen[strings.ToLower(r.Pattern)] {
			t.Errorf("%s: stands twice", r.Pattern)
		}
		seen[strings.ToLower(r.Pattern)] = true
		if r.Reason == "" || r.Class == Unlisted {
			t.Errorf("%s: has no reason or class", r.Pattern)
		}
		for _, prefix := range []string{"", "a/", "a/b/.config/", ".github/"} {
			path := prefix + strings.ReplaceAll(r.Pattern, "*", "any")
			z := At(path)
			if strings.HasSuffix(prefix, ".config/") && strings.HasPrefix(r.Pattern, "mise/") && z.Rule() != nil && z.Rule().Pattern == ".config/mise" {
				continue // all of that directory is locked
			}
			if z.Rule() == nil || z.Rule().Pattern != r.Pattern {
				t.Errorf("At(%q) names the rule %v, want %s", path, z.Rule(), r.Pattern)
			}
		}
	}
}

func TestSampleHook(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"pre-commit.sample": true, "x.sample": true, "pre-commit": false, "pre-commit.sample.": false,
		"pre-commit.SAMPLE": false, "pre-commit:.sample": false, "pre-commit.sample ": false, "": false,
	} {
		if got := SampleHook(name); got != want {
			t.Errorf("SampleHook(%q) = %t, want %t", name, got, want)
		}
	}
}

// FuzzZone checks what must hold for any names: no panic, the same answer for
// any case, and nothing that is locked becomes free further down.
func FuzzZone(f *testing.F) {
	for _, seed := range []string{".git/config", "a/.VSCODE/x", ".git/modules/a/b/hooks", "node_modules/.git/x", ".config/git", "\xff/\u200c.git", "git~1/hooks"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		z := At(path)
		if utf8.ValidString(path) && isASCII(path) {
			if up := At(strings.ToUpper(path)); up != z {
				t.Errorf("At(%q) differs from its upper case", path)
			}
		}
		if f := Fold(path); Fold(f) != f && isASCII(path) && !strings.ContainsAny(path, ":~") {
			t.Errorf("Fold(Fold(%q)) = %q, want %q", path, Fold(f), f)
		}
		if z.Kind() == Name || z.Kind() == GitHook {
			if c := z.Child("x"); !c.Locked() {
				t.Errorf("an entry in %q, which is locked, is free", path)
			}
		}
	})
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
