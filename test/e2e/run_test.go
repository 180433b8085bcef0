package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/sandbox"
)

// TestExitCodes: the command's own; 124 timeout; 126 not executable, 127 not
// found; 125 what Belljar refuses; 128 plus the signal. By run and by exec.
func TestExitCodes(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	for _, tc := range []struct {
		name   string
		flags  []string
		argv   []string
		code   int
		stderr []string
	}{
		{"zero", nil, []string{"true"}, 0, nil},
		{"one", nil, []string{"false"}, 1, nil},
		{"highest", nil, []string{"sh", "-c", "exit 255"}, 255, nil},
		{"signal", nil, []string{"sh", "-c", "kill -TERM $$"}, 143, nil},
		{"timeout", []string{"--timeout", "1s"}, []string{"sleep", "60"}, 124, []string{"the time of 1s was over", "hint: allow more time with --timeout"}},
		{"not found", nil, []string{"no-such-program"}, 127, []string{`"no-such-program"`, "no such program"}},
		{"not found by path", nil, []string{"/no/such"}, 127, []string{`"/no/such"`}},
		{"not executable", nil, []string{"/etc/passwd"}, 126, []string{`"/etc/passwd"`}},
		{"a directory", nil, []string{"/etc"}, 126, []string{`"/etc"`}},
		{"no such directory", []string{"-w", "/no/such"}, []string{"true"}, 125, []string{`cwd "/no/such"`}},
		{"no such user", []string{"-u", "nobody-here"}, []string{"true"}, 125, []string{`user "nobody-here"`}},
		{"124 of its own", nil, []string{"sh", "-c", "exit 124"}, 124, nil},
	} {
		for how, do := range map[string][]string{"run": {"run"}, "exec": {"exec"}} {
			t.Run(how+" "+tc.name, func(t *testing.T) {
				args := append(do, tc.flags...)
				if how == "exec" {
					args = append(args, b.name)
				}
				r := want(t, e.Belljar(append(append(args, "--"), tc.argv...)...), tc.code)
				contains(t, r.Stderr, tc.stderr...)
				if tc.stderr == nil && r.Stderr != "" {
					t.Errorf("stderr: %q, want nothing", r.Stderr)
				}
			})
		}
	}
}

// TestRunWithoutDaemon: run needs no daemon and leaves nothing, whatever the
// end; testenv checks for leftovers.
func TestRunWithoutDaemon(t *testing.T) {
	e := setup(t)
	r := want(t, e.Belljar("run", "--", "echo", "hello"), 0)
	if r.Stdout != "hello\n" || r.Stderr != "" {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
	want(t, e.Belljar("run", "--", "no-such-program"), 127)
	for _, name := range []string{"daemon.sock", "daemon.lock"} {
		if _, err := os.Stat(filepath.Join(e.Run, name)); err == nil {
			t.Errorf("%s exists: a daemon was started", name)
		}
	}
}

// TestResultJSON: -o json tells exit, isolation, limits, timeline and the
// output of each stream.
func TestResultJSON(t *testing.T) {
	e := setup(t)
	r := want(t, e.Belljar("run", "-o", "json", "--memory", "512m", "--", "sh", "-c", `printf 'out\n'; printf '\377' >&2; exit 3`), 3)
	var got ended
	decode(t, r.Stdout, &got)
	if got.Exit.Code != 3 || got.Exit.Status != 3 {
		t.Errorf("exit = %+v", got.Exit)
	}
	if got.Stdout.Head != "out\n" || got.Stdout.Bytes != 4 || got.Stdout.Encoding != "utf-8" {
		t.Errorf("stdout = %+v", got.Stdout)
	}
	if got.Stderr.Head != "/w==" || got.Stderr.Encoding != "base64" {
		t.Errorf("stderr = %+v", got.Stderr)
	}
	if got.Isolation.Effective != "gvisor" || got.Isolation.Requested != "gvisor" {
		t.Errorf("isolation = %+v", got.Isolation)
	}
	i := slices.IndexFunc(got.Limits, func(l sandbox.LimitStatus) bool { return l.Name == "memory" })
	if i < 0 || !got.Limits[i].Explicit || !got.Limits[i].Enforced || got.Limits[i].Value != "512MiB" {
		t.Errorf("limits = %+v", got.Limits)
	}
	for _, part := range []string{"cli_ms", "keeper_ms", "boot_ms", "start_ms", "guest_ms", "exec_ms", "end_ms", "total_ms"} {
		if got.Timing[part] <= 0 {
			t.Errorf("timing %s = %v", part, got.Timing[part])
		}
	}
	if len(got.Timeline) == 0 {
		t.Error("no timeline")
	}
}

// TestEnvironment: values with newlines pass, ours does not leak, -e KEY and
// --env-file work.
func TestEnvironment(t *testing.T) {
	e := setup(t)
	file := filepath.Join(e.Home, "env")
	if err := os.WriteFile(file, []byte("FROM_FILE=yes\nPASSED\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := e.Command("run", "-e", "LINES=a\nb\tc", "-e", "EMPTY=", "-e", "UNICODE=é漢", "--env-file", file, "--", "env", "-0")
	cmd.Env = append(cmd.Env, "SECRET_OF_OURS=1", "PASSED=on", "LD_PRELOAD_X=1")
	r := want(t, e.Finish(cmd), 0)
	got := strings.Split(strings.TrimSuffix(r.Stdout, "\x00"), "\x00")
	for _, w := range []string{"LINES=a\nb\tc", "EMPTY=", "UNICODE=é漢", "FROM_FILE=yes", "PASSED=on", "HOME=/home/user"} {
		if !slices.Contains(got, w) {
			t.Errorf("%q is missing in %q", w, got)
		}
	}
	for _, v := range got {
		if strings.HasPrefix(v, "SECRET_OF_OURS") || strings.HasPrefix(v, "LD_PRELOAD_X") || strings.HasPrefix(v, "BELLJAR_") {
			t.Errorf("%q has leaked", v)
		}
	}
}

// TestUsers: -u user and -u root, each with its home.
func TestUsers(t *testing.T) {
	e := setup(t)
	for user, ids := range map[string]string{"": "1000:1000:/home/user:/home/user", "user": "1000:1000:/home/user:/home/user", "root": "0:0:/root:/root"} {
		args := []string{"run"}
		if user != "" {
			args = append(args, "-u", user)
		}
		r := want(t, e.Belljar(append(args, "--", "sh", "-c", `echo "$(id -u):$(id -g):$HOME:$(pwd)"; touch ~/mine && stat -c %u ~/mine`)...), 0)
		if got := strings.Fields(r.Stdout); len(got) != 2 || got[0] != ids || got[1] != ids[:strings.Index(ids, ":")] {
			t.Errorf("user %q: %q, want %q", user, r.Stdout, ids)
		}
	}
}

// TestHostileArguments: what is in the arguments reaches the command as it is
// and is printed escaped.
func TestHostileArguments(t *testing.T) {
	e := setup(t)
	args := []string{"a b", "", "-n", "--", "$(id)", "new\nline", strings.Repeat("x", 100_000)}
	r := want(t, e.Belljar(append([]string{"run", "--", "printf", "%s|"}, args...)...), 0)
	if want := strings.Join(args, "|") + "|"; r.Stdout != want {
		t.Errorf("arguments came as %q", clip(r.Stdout))
	}
	r = want(t, e.Belljar("run", "--", "echo", "\xff\xfe"), 125)
	contains(t, r.Stderr, `belljar: argument "\xff\xfe": it is not valid UTF-8`)
	r = want(t, e.Belljar("run", "--", "no\x1b]0;x\x07\u202esuch"), 127)
	if strings.ContainsAny(r.Stderr, "\x1b\x07\u202e") {
		t.Errorf("control characters on standard error: %q", r.Stderr)
	}
}
