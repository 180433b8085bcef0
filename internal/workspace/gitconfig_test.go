package workspace

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

var configCases = []struct {
	name, config, gitDir string
	ok                   bool
}{
	{"empty", "", ".git", true},
	{"as git init writes it", "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n", ".git", true},
	{"as git clone writes it", "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = https://example.com/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n", ".git", true},
	{"user", "[user]\n\tname = \"A \\\"B\\\" C\" ; comment\n\temail = a@example.com # comment\n", ".git", true},
	{"CRLF", "[core]\r\n\tbare = false\r\n", ".git", true},
	{"key without value", "[core]\n\tbare\n", ".git", true},
	{"submodule", "[core]\n\tworktree = ../../../sub/dir\n", "p/.git/modules/x", true},
	{"nested submodule", "[core]\n\tworktree = ../../../../../a/b\n", ".git/modules/a/modules/b", true},
	{"submodule entry", "[submodule \"a\"]\n\turl = ../a.git\n\tactive = true\n\tupdate = checkout\n", ".git", true},
	{"ssh URL", "[remote \"o\"]\n\turl = git@example.com:a/b.git\n", ".git", true},
	{"IPv6 URL", "[remote \"o\"]\n\turl = ssh://[::1]/a\n", ".git", true},
	{"empty subsection of a safe key", "[remote \"\"]\n\turl = x\n", ".git", true},

	{"fsmonitor", "[core]\n\tfsmonitor = evil\n", ".git", false},
	{"upper case", "[CORE]\n\tFsMonitor = evil\n", ".git", false},
	{"on the header's line", "[core] fsmonitor = evil\n", ".git", false},
	{"after the header's quote", "[core \"\"]x=1\n", ".git", false},
	{"dotted header", "[remote.origin]\n\turl = x\n", ".git", false},
	{"hooks path", "[core]\n\thooksPath = x\n", ".git", false},
	{"ssh command", "[core]\n\tsshCommand = x\n", ".git", false},
	{"subsection of core", "[core \"x\"]\n\tbare = true\n", ".git", false},
	{"alias", "[alias]\n\tst = !evil\n", ".git", false},
	{"include", "[include]\n\tpath = /tmp/x\n", ".git", false},
	{"conditional include", "[includeIf \"gitdir:/\"]\n\tpath = /tmp/x\n", ".git", false},
	{"filter", "[filter \"x\"]\n\tclean = evil\n", ".git", false},
	{"diff driver", "[diff \"x\"]\n\ttextconv = evil\n", ".git", false},
	{"external diff", "[diff]\n\texternal = evil\n", ".git", false},
	{"credential helper", "[credential]\n\thelper = !evil\n", ".git", false},
	{"url rewriting", "[url \"ext::sh\"]\n\tinsteadOf = https://\n", ".git", false},
	{"proxy", "[http]\n\tproxy = x\n", ".git", false},
	{"ext transport", "[remote \"o\"]\n\turl = ext::sh -c evil\n", ".git", false},
	{"ext transport, quoted", "[remote \"o\"]\n\turl = \"ext:\"\":sh\"\n", ".git", false},
	{"option as URL", "[remote \"o\"]\n\turl = -oProxyCommand=x\n", ".git", false},
	{"branch with a helper", "[branch \"m\"]\n\tremote = ext::x\n", ".git", false},
	{"upload pack", "[remote \"o\"]\n\tuploadpack = evil\n", ".git", false},
	{"submodule command", "[submodule \"a\"]\n\tupdate = !evil\n", ".git", false},
	{"worktree of a plain repository", "[core]\n\tworktree = ../x\n", ".git", false},
	{"worktree outside", "[core]\n\tworktree = ../../../../x\n", ".git/modules/x", false},
	{"worktree too near", "[core]\n\tworktree = ../../x\n", ".git/modules/x", false},
	{"worktree absolute", "[core]\n\tworktree = /home/x\n", ".git/modules/x", false},
	{"worktree climbing later", "[core]\n\tworktree = ../../../a/../../b\n", ".git/modules/x", false},
	{"continuation", "[core]\n\tbare = fal\\\nse\n", ".git", false},
	{"continued comment", "[core] # \\\nfsmonitor = x\n", ".git", false},
	{"open quote", "[core]\n\tbare = \"x\n", ".git", false},
	{"NUL", "[core]\n\tbare = \x00\n", ".git", false},
	{"lone CR", "[core]\n\tbare = a\rfsmonitor = x\n", ".git", false},
	{"byte order mark", "\ufeff[core]\n\tbare = true\n", ".git", false},
	{"key outside of a section", "bare = true\n", ".git", false},
	{"digit first", "[core]\n\t1a = true\n", ".git", false},
	{"too large", strings.Repeat("#\n", MaxGitConfig), ".git", false},
}

func TestCheckGitConfig(t *testing.T) {
	t.Parallel()
	for _, tt := range configCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := CheckGitConfig([]byte(tt.config), tt.gitDir)
			if (err == nil) != tt.ok {
				t.Errorf("CheckGitConfig = %v, want ok %t", err, tt.ok)
			}
			var unsafe *UnsafeConfigError
			if err != nil && !errors.As(err, &unsafe) {
				t.Errorf("CheckGitConfig returns %T", err)
			}
		})
	}
}

// gitKeys lists the keys that git itself reads from a configuration.
func gitKeys(t *testing.T, config []byte) ([]string, bool) {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Skip("probe: git is not on PATH")
	}
	cmd := exec.Command(path, "config", "--file=-", "--no-includes", "--list", "-z")
	cmd.Env = []string{"HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	cmd.Stdin = bytes.NewReader(config)
	out, err := cmd.Output()
	if err != nil {
		return nil, false
	}
	var keys []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		key, _, _ := strings.Cut(entry, "\n")
		if key != "" {
			keys = append(keys, key)
		}
	}
	return keys, true
}

// allowed tells whether a key as git lists it is one that CheckGitConfig may
// let through.
func allowed(key string) bool {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	e := configEntry{section: key[:first], name: key[last+1:], named: first != last}
	if e.named {
		e.sub = key[first+1 : last]
	}
	for _, value := range []string{"true", "checkout"} {
		if e.value = value; e.why() == "" {
			return true
		}
	}
	return e.section == "core" && e.name == "worktree" && !e.named
}

// FuzzCheckGitConfig looks for a configuration that passes and in which git
// finds a key that may not.
func FuzzCheckGitConfig(f *testing.F) {
	for _, tt := range configCases {
		if len(tt.config) < 4096 {
			f.Add([]byte(tt.config))
		}
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		if CheckGitConfig(config, ".git/modules/x") != nil {
			return
		}
		keys, ok := gitKeys(t, config)
		if !ok {
			return // git refuses it: nothing is executed
		}
		for _, key := range keys {
			if !allowed(key) {
				t.Errorf("git reads %q from an accepted configuration:\n%q", key, config)
			}
		}
	})
}
