package launch

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestParseSubIDs(t *testing.T) {
	file := "# comment\nalice:100000:65536\nbob:200000:1000\nbob:300000:65536\n1000:400000:65536\nbad:x:1\nzero:5:0\nroot:0:65536\nshort:1\n"
	for _, tc := range []struct {
		names []string
		want  idRange
		ok    bool
	}{
		{[]string{"alice"}, idRange{100000, 65536}, true},
		{[]string{"bob"}, idRange{300000, 65536}, true}, // the largest
		{[]string{"1000", "carol"}, idRange{400000, 65536}, true},
		{[]string{"carol"}, idRange{}, false},
		{[]string{"bad"}, idRange{}, false},
		{[]string{"zero"}, idRange{}, false},
		{[]string{"root"}, idRange{}, false}, // nobody is given the host's root
		{[]string{"short"}, idRange{}, false},
	} {
		if got, ok := parseSubIDs([]byte(file), tc.names); got != tc.want || ok != tc.ok {
			t.Errorf("%v: %v, %v, want %v, %v", tc.names, got, ok, tc.want, tc.ok)
		}
	}
}

func TestUsernsRefusal(t *testing.T) {
	for name, tc := range map[string]struct {
		uid  int
		file string
		val  string
		want string
	}{
		"root":     {0, "/proc/sys/user/max_user_namespaces", "0", ""},
		"free":     {1000, "", "", ""},
		"none":     {1000, "/proc/sys/user/max_user_namespaces", "0", "max_user_namespaces"},
		"debian":   {1000, "/proc/sys/kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone"},
		"apparmor": {1000, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"},
	} {
		t.Run(name, func(t *testing.T) {
			why, hint := usernsRefusal(tc.uid, func(path string) string {
				if path == tc.file {
					return tc.val
				}
				return ""
			})
			if (why == "") != (tc.want == "") || !strings.Contains(why, tc.want) || why != "" && hint == "" {
				t.Errorf("why %q, hint %q, want %q", why, hint, tc.want)
			}
		})
	}
}

func TestExplainStart(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want sandbox.Kind
	}{
		{unix.EPERM, sandbox.Unsupported},
		{unix.ENOSPC, sandbox.Unsupported},
		{unix.EAGAIN, sandbox.Unavailable},
		{unix.ENOENT, sandbox.Unsupported},
	} {
		if err := explainStart(tc.err, "/engine"); sandbox.KindOf(err) != tc.want {
			t.Errorf("%v: %v, want %s", tc.err, err, tc.want)
		}
	}
}
