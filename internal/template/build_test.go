package template

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestHostSources(t *testing.T) {
	const ours = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"none", nil, ""},
		{"deb822", map[string]string{
			"sources.list.d/debian.sources": "Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates bookworm-backports\nComponents: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
			"sources.list.d/other.sources":  "Types: deb\nURIs: https://other.example\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/other.gpg\n",
			"sources.list.d/node.sources":   "Types: deb\nURIs: https://node.example\nSuites: nodistro\nComponents: main\n",
		}, ours},
		{"one line", map[string]string{
			"sources.list": "# x\ndeb http://a.example/debian bookworm main non-free # tail\ndeb-src http://a.example/debian bookworm main\n" +
				"deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://s.example bookworm-security main\nbad line\n",
			"sources.list.d/docker.list": "deb [signed-by=/etc/apt/keyrings/docker.gpg] https://d.example bookworm stable\n",
		}, "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\nComponents: main\n\n" +
			"Types: deb\nURIs: http://s.example\nSuites: bookworm-security\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"},
		{"password", map[string]string{"sources.list": "deb http://user:secret@a.example/debian bookworm main\n"}, ""},
		{"another suite", map[string]string{"sources.list": "deb http://a.example/debian trixie main\n"}, ""},
		{"only updates", map[string]string{"sources.list": "deb http://a.example/debian bookworm-updates main\n"}, ""},
		{"disabled", map[string]string{"sources.list.d/d.sources": "Enabled: no\nTypes: deb\nURIs: http://a.example\nSuites: bookworm\nComponents: main\n"}, ""},
		{"key inside", map[string]string{"sources.list.d/d.sources": "Types: deb\nURIs: http://a.example\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP\n x\n"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			etc := fakeHost(t, tt.files)
			if got := hostSources(etc, "bookworm"); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestBuildRefuses(t *testing.T) {
	s := newStore(t, Options{})
	tests := []struct {
		name, recipe string
		o            BuildOptions
		path         string
		kind         sandbox.Kind
		hint         string
	}{
		{"recipe", "gentoo", BuildOptions{}, "", sandbox.Invalid, "debian"},
		{"name", "debian", BuildOptions{Name: "../x"}, "", sandbox.Invalid, ""},
		{"host", "debian", BuildOptions{Name: "host"}, "", sandbox.Invalid, ""},
		{"package", "debian", BuildOptions{Packages: []string{"--hook=evil"}}, "", sandbox.Invalid, ""},
		{"packages", "debian", BuildOptions{Packages: []string{"a,b"}}, "", sandbox.Invalid, ""},
		{"suite", "debian", BuildOptions{Suite: "-"}, "/usr/bin", sandbox.Invalid, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Build(t.Context(), tt.recipe, tt.o)
			if kind := sandbox.KindOf(err); kind == sandbox.Unsupported && tt.path != "" {
				t.Skip("probe: mmdebstrap is not installed")
			} else if kind != tt.kind || !strings.Contains(sandbox.AsError(err).Hint, tt.hint) {
				t.Errorf("got %v (hint %q), want kind %s", err, sandbox.AsError(err).Hint, tt.kind)
			}
		})
	}
}

func TestTail(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "it said nothing",
		"I: one\nI: two\n":                    "I: two",
		"I: one\nE: broken\nE: later\nI: end": "broken",
		strings.Repeat("x", 3*maxLine) + "\nE: after a long line\n": "after a long line",
	} {
		var tl tail
		tl.read(strings.NewReader(in), func(string) {})
		if got := tl.reason(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestHasSubIDs(t *testing.T) {
	const text = "alice:100000:65536\n1001:200000:65536\njunk\n"
	for _, tt := range []struct {
		name, uid string
		want      bool
	}{{"alice", "1000", true}, {"bob", "1001", true}, {"carol", "1002", false}, {"alic", "100", false}} {
		if got := hasSubIDs(text, tt.name, tt.uid); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// fakeProgram puts a script called mmdebstrap first in PATH, outside /tmp,
// which a build covers.
func fakeProgram(t *testing.T, script string) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "belljar-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func needBuilder(t *testing.T) {
	t.Helper()
	if !canChown() {
		if err := checkSubIDs(); err != nil {
			t.Skipf("probe: %v", err)
		}
		return
	}
	if err := exec.Command("unshare", "-U", "true").Run(); err != nil {
		t.Skipf("probe: user namespaces: %v", err)
	}
}

// TestBuildFails runs programs that fail in ways of their own: nothing is left
// and the reason is told.
func TestBuildFails(t *testing.T) {
	needBuilder(t)
	tests := []struct {
		name, script string
		want         string
	}{
		{"at once", "echo 'E: no such mirror' >&2; exit 1", "no such mirror"},
		{"after a whole archive", "cd / && tar -cf - etc/hostname; echo 'E: too late' >&2; exit 3", "too late"},
		{"in the middle", "head -c 700 /dev/zero | tr '\\0' x; echo 'E: broke off' >&2; exit 1", "broke off"},
		{"silently", "exit 7", "said nothing"},
		{"without an archive", "exit 0", "empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fakeProgram(t, tt.script)
			s := newStore(t, Options{})
			_, err := s.Build(t.Context(), "debian", BuildOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to name %q", err, tt.want)
			}
			if got := leftovers(t, s); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// TestBuildSandboxed looks at what a build's program can see and do.
func TestBuildSandboxed(t *testing.T) {
	needBuilder(t)
	if !canChown() {
		t.Skip("probe: not root, mmdebstrap makes the namespace itself")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BELLJAR_TEST_SECRET", "leak")
	fakeProgram(t, `exec 2>&1 >/tmp/out
echo "pid $$ uid $(id -u) map $(cat /proc/self/uid_map)"
cat /etc/shadow `+secret+` 2>&1
env
ls /proc/self/fd
cd /tmp && mkdir t && cp out t/ && touch t/owned && chown 1000:1000 t/owned
exec 1>&2
cat out >&2
exit 9`)
	var log []string
	s := newStore(t, Options{})
	_, err := s.Build(t.Context(), "debian", BuildOptions{Log: func(l string) { log = append(log, l) }})
	if err == nil {
		t.Fatal("a build that fails succeeded")
	}
	text := strings.Join(log, "\n")
	for _, bad := range []string{"leak", "root:x", "root:*"} {
		if strings.Contains(text, bad) {
			t.Errorf("the build sees %q:\n%s", bad, text)
		}
	}
}

func TestBuildCanceled(t *testing.T) {
	needBuilder(t)
	fakeProgram(t, "echo started >&2; trap '' TERM; while :; do sleep 1; done")
	s := newStore(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Build(ctx, "debian", BuildOptions{Log: func(string) { cancel() }})
	if sandbox.KindOf(err) != sandbox.Canceled {
		t.Errorf("got %v, want canceled", err)
	}
	if got := leftovers(t, s); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestBuildDebian really builds: it takes about a minute and needs the host's
// package sources, so it is asked for.
func TestBuildDebian(t *testing.T) {
	if os.Getenv("BELLJAR_TEST_BUILD") == "" {
		t.Skip("probe: BELLJAR_TEST_BUILD is not set; building downloads packages")
	}
	needBuilder(t)
	s := newStore(t, Options{})
	if dir := os.Getenv("BELLJAR_TEST_BUILD_STORE"); dir != "" {
		s = New(dir, Options{})
	}
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	d, err := s.Build(t.Context(), "debian", BuildOptions{Log: func(l string) { t.Log(l) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("built in %v: %d entries, %d bytes", time.Since(began), d.Entries, d.SizeBytes)
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || string(after) != string(before) {
		t.Errorf("mounts changed: %s", after)
	}
	if got := leftovers(t, s); !slices.Equal(got, []string{"debian"}) {
		t.Errorf("left: %q", got)
	}
	root, _, err := s.Resolve(t.Context(), "debian")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{
		"usr/bin/python3", "usr/bin/python", "usr/bin/git", "usr/lib/git-core/git-daemon", "usr/bin/curl", "usr/bin/ps", "usr/bin/sudo",
		"usr/bin/clear", "usr/bin/ip", "home/user/.bashrc", "etc/sudoers.d",
	} {
		if _, err := os.Stat(filepath.Join(root.Path, p)); err != nil && canChown() {
			t.Error(err)
		}
	}
	for _, p := range []string{"etc/resolv.conf", "etc/hostname", "etc/machine-id", "etc/hosts"} {
		b, err := os.ReadFile(filepath.Join(root.Path, p))
		host, _ := os.ReadFile("/" + p)
		if err != nil || len(host) > 0 && string(b) == string(host) {
			t.Errorf("%s is the host's: %q, %v", p, b, err)
		}
	}
	if !canChown() {
		return
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root.Path, "usr/bin/sudo"), &st); err != nil || st.Mode != unix.S_IFREG|0o4755 || st.Uid != 0 {
		t.Errorf("sudo has mode %o and owner %d, %v", st.Mode, st.Uid, err)
	}
	script := "mount --bind " + root.Path + " /mnt && mount --bind /dev /mnt/dev && chroot --userspec=1000:1000 /mnt env HOME=/home/user sh -ec 'sudo -n id -u 2>/dev/null; python -c \"print(6*7)\"; git --version'"
	out, err := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "0\n42\ngit version") {
		t.Errorf("got %v:\n%s", err, out)
	}
}
