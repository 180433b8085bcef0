package template

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// fakeHost makes the root of a host: a name that ends in '/' is a directory, a
// value that begins with "-> " a link, others are files.
func fakeHost(t testing.TB, files map[string]string) string {
	t.Helper()
	base := t.TempDir()
	os.Chmod(base, 0o755)
	for name, body := range files {
		p := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch to, isLink := strings.CutPrefix(body, "-> "); {
		case isLink:
			err = os.Symlink(to, p)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		default:
			err = os.WriteFile(p, []byte(body), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return base
}

func plainHost(t testing.TB) string {
	host := fakeHost(t, map[string]string{
		"usr/bin/tool": "#!", "usr/local/bin/mine": "#!", "usr/lib/": "", "bin": "-> usr/bin", "lib": "-> usr/lib", "sbin": "-> /home/bob/sbin",
		"etc/passwd": "bob:x:1000:1000::/home/bob:/bin/sh", "etc/shadow": "bob:hash", "etc/hostname": "secret-host",
		"etc/ssl/certs/ca.pem": "-----BEGIN CERTIFICATE-----\n", "etc/ssl/private/host.pem": "key",
		"etc/ssl/oops.pem": "x\n-----BEGIN RSA PRIVATE KEY-----\n", "etc/ssl/server.KEY": "k", "etc/ssl/certs/l.pem": "-> ca.pem",
		"etc/ssl/certs/gone.pem": "-> /usr/local/share/ca.pem", "etc/ssl/certs/home.pem": "-> /home/bob/ca.pem",
		"etc/alternatives/vi": "-> /usr/bin/vim", "etc/alternatives/java": "-> /opt/bobs-company/java", "etc/alternatives/chain": "-> java",
		"etc/localtime": "-> ../usr/share/zoneinfo/UTC", "etc/gitconfig": "[url]", "etc/pip.conf": "token", "etc/services": "ssh 22/tcp\n",
		"etc/python3/debian_config": "x", "home/bob/.ssh/id": "key", "opt/node/bin/node": "#!", "etc/perl/unreadable": "u", "etc/java-17/closed/f": "c",
	})
	for name, mode := range map[string]fs.FileMode{"etc/perl/unreadable": 0o600, "etc/java-17/closed": 0o700} {
		if err := os.Chmod(filepath.Join(host, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(host, "etc/perl/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	return host
}

func newStore(t testing.TB, o Options) *Store {
	t.Helper()
	return New(filepath.Join(t.TempDir(), "templates"), o)
}

// list returns all paths below dir.
func list(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestHostShowsWhatEverybodyMayRead(t *testing.T) {
	host := plainHost(t)
	s := newStore(t, Options{Host: HostOptions{base: host}})
	root, tpl, err := s.Resolve(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	if tpl.Kind != KindHost || !tpl.HostBacked || tpl.Setuid || root.Setuid {
		t.Errorf("got %+v, %+v", tpl, root)
	}
	got := list(t, root.Path)
	for _, want := range []string{
		"etc/ssl/certs/ca.pem", "etc/ssl/certs/l.pem", "etc/alternatives/vi", "etc/localtime", "etc/services", "etc/python3/debian_config",
		"etc/passwd", "etc/group", "etc/hosts", "etc/machine-id", "bin", "lib", "usr", "home", "root", "tmp", "run", "proc", "sys", "dev", "workspace",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, p := range got {
		for _, bad := range []string{
			"shadow", "private", "oops", "KEY", "gone", "home.pem", "alternatives/java", "chain", "gitconfig", "pip.conf", "unreadable", "closed", "pipe",
			"bob", "sbin", "sudoers",
		} {
			if strings.Contains(p, bad) {
				t.Errorf("%s is shown", p)
			}
		}
	}
	for name, want := range map[string]string{"etc/hostname": "sandbox\n", "etc/machine-id": ""} {
		if b, err := os.ReadFile(filepath.Join(root.Path, name)); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v, want %q", name, b, err, want)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(root.Path, "etc/passwd")); strings.Contains(string(b), "bob") {
		t.Errorf("the host's users are shown: %s", b)
	}
	wantBinds := []driver.Bind{
		{Source: host + "/usr", Target: "/usr"},
		{Source: filepath.Join(filepath.Dir(root.Path), "local"), Target: "/usr/local"},
	}
	if !slices.Equal(root.Binds, wantBinds) {
		t.Errorf("got binds %v, want %v", root.Binds, wantBinds)
	}
	checkPlain(t, root.Path)
}

// checkPlain checks that a tree has nothing but plain files of ours in it that
// everybody may read.
func checkPlain(t *testing.T, root string) {
	t.Helper()
	for _, p := range list(t, root) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, p), &st); err != nil {
			t.Fatal(err)
		}
		kind := st.Mode & unix.S_IFMT
		if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK {
			t.Errorf("%s has mode %o", p, st.Mode)
		}
		if kind == unix.S_IFREG && (st.Mode&0o444 != 0o444 || st.Nlink != 1) {
			t.Errorf("%s has mode %o and %d names", p, st.Mode, st.Nlink)
		}
	}
}

func TestHostOwners(t *testing.T) {
	s := newStore(t, Options{Host: HostOptions{base: plainHost(t)}})
	root, _, err := s.Resolve(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	err = unix.Lstat(filepath.Join(root.Path, "home/user"), &st)
	switch {
	case root.Shifted && (err != nil || st.Uid != userID):
		t.Errorf("got owner %d, %v, want %d", st.Uid, err, userID)
	case !root.Shifted && err == nil:
		t.Error("the guest cannot make a home of the right owner when there is one")
	}
	if err := unix.Lstat(filepath.Join(root.Path, "tmp"), &st); err != nil || st.Mode&0o7777 != 0o1777 {
		t.Errorf("/tmp has mode %o, %v", st.Mode, err)
	}
	if got, err := User(root, ""); err != nil || got.UID != userID {
		t.Errorf("got %+v, %v, want %d", got, err, userID)
	}
	if _, err := User(root, "bob"); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("got %v for a user of the host, want invalid", err)
	}
}

func TestHostOptions(t *testing.T) {
	host := plainHost(t)
	if err := os.Mkdir(filepath.Join(host, "opt/closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		o    HostOptions
		want []string // targets
		kind sandbox.Kind
	}{
		{"default", HostOptions{}, []string{"/usr", "/usr/local"}, ""},
		{"local", HostOptions{UsrLocal: true}, []string{"/usr"}, ""},
		{"extra", HostOptions{Extra: []string{"/opt/node/"}}, []string{"/usr", "/opt/node", "/usr/local"}, ""},
		{"extra hidden", HostOptions{Extra: []string{"/usr/local/bin"}}, nil, sandbox.Invalid},
		{"extra closed", HostOptions{Extra: []string{"/opt/closed"}}, nil, sandbox.Invalid},
		{"extra missing", HostOptions{Extra: []string{"/opt/none"}}, nil, sandbox.Invalid},
		{"extra home", HostOptions{Extra: []string{"/home/bob"}}, nil, sandbox.Invalid},
		{"extra root", HostOptions{Extra: []string{"/"}}, nil, sandbox.Invalid},
		{"extra relative", HostOptions{Extra: []string{"opt"}}, nil, sandbox.Invalid},
		{"extra dotdot", HostOptions{Extra: []string{"/opt/../etc"}}, nil, sandbox.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.base = host
			root, _, err := newStore(t, Options{Host: tt.o}).Resolve(t.Context(), "host")
			if sandbox.KindOf(err) != tt.kind {
				t.Fatalf("got %v, want kind %q", err, tt.kind)
			}
			var got []string
			for _, b := range root.Binds {
				got = append(got, b.Target)
				if b.Target == usrLocal {
					continue // made by the bind before it
				}
				if info, err := os.Stat(filepath.Join(root.Path, b.Target)); err != nil || !info.IsDir() {
					t.Errorf("nothing to mount %s on", b.Target)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestHostWithoutUsrMerge(t *testing.T) {
	host := fakeHost(t, map[string]string{"usr/bin/": "", "bin/sh": "#!", "lib/ld.so": "x", "lib64/": "", "etc/": ""})
	root, _, err := newStore(t, Options{Host: HostOptions{base: host}}).Resolve(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range root.Binds {
		got = append(got, b.Target)
	}
	if want := []string{"/usr", "/bin", "/lib", "/lib64"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHostWithoutPrograms(t *testing.T) {
	host := fakeHost(t, map[string]string{"etc/": ""})
	_, _, err := newStore(t, Options{Host: HostOptions{base: host}}).Resolve(t.Context(), "host")
	if sandbox.KindOf(err) != sandbox.Unsupported {
		t.Errorf("got %v, want unsupported", err)
	}
}

// TestHostCache changes the host in every way that matters and expects another
// skeleton, or the same when nothing changed.
func TestHostCache(t *testing.T) {
	host := plainHost(t)
	s := newStore(t, Options{Host: HostOptions{base: host}})
	resolve := func() string {
		root, _, err := s.Resolve(t.Context(), "host")
		if err != nil {
			t.Fatal(err)
		}
		return root.Path
	}
	last := resolve()
	if got := resolve(); got != last {
		t.Errorf("nothing changed, but the root is another: %s, %s", last, got)
	}
	changes := []struct {
		name string
		do   func() error
		same bool
	}{
		{"content", func() error { return os.WriteFile(filepath.Join(host, "etc/services"), []byte("x\n"), 0o644) }, false},
		{"mode", func() error { return os.Chmod(filepath.Join(host, "etc/services"), 0o600) }, false},
		{"new file", func() error { return os.WriteFile(filepath.Join(host, "etc/ssl/certs/b.pem"), []byte("b"), 0o644) }, false},
		{"removed file", func() error { return os.Remove(filepath.Join(host, "etc/ssl/certs/b.pem")) }, false},
		{"new file not shown", func() error { return os.WriteFile(filepath.Join(host, "etc/motd"), []byte("b"), 0o644) }, true},
		{"new directory of programs", func() error { return os.Mkdir(filepath.Join(host, "lib64"), 0o755) }, false},
	}
	for _, c := range changes {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if got := resolve(); (got == last) != c.same {
			t.Errorf("%s: same root is %v, want %v", c.name, got == last, c.same)
		} else {
			last = got
		}
	}
}

// TestHostCacheHit waits until the host's files are old enough to be trusted,
// then expects an answer without a look into them.
func TestHostCacheHit(t *testing.T) {
	host := plainHost(t)
	s := newStore(t, Options{Host: HostOptions{base: host}})
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(settle / 2)
	defer tick.Stop()
	for {
		want, _, err := s.Resolve(t.Context(), "host")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := s.cachedHost(canChown()); ok {
			if got.Path != want.Path || !slices.Equal(got.Binds, want.Binds) {
				t.Errorf("got %+v from the cache, want %+v", got, want)
			}
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the cache is never used")
		}
	}
	if err := os.RemoveAll(filepath.Dir(mustResolve(t, s).Path)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mustResolve(t, s).Path, "etc/passwd")); err != nil {
		t.Errorf("a skeleton that is gone was not made again: %v", err)
	}
}

func mustResolve(t testing.TB, s *Store) driver.Root {
	t.Helper()
	root, _, err := s.Resolve(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestHostConcurrent resolves from many processes' worth of stores at once.
func TestHostConcurrent(t *testing.T) {
	host, dir := plainHost(t), filepath.Join(t.TempDir(), "templates")
	type result struct {
		root driver.Root
		err  error
	}
	results := make(chan result)
	for range 20 {
		go func() {
			root, _, err := New(dir, Options{Host: HostOptions{base: host}}).Resolve(t.Context(), "host")
			results <- result{root, err}
		}()
	}
	for range 20 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		} else if _, err := os.Stat(filepath.Join(r.root.Path, "etc/passwd")); err != nil {
			t.Error(err)
		}
	}
	for _, p := range list(t, dir) {
		if strings.HasPrefix(p, tempPrefix) {
			t.Errorf("left: %s", p)
		}
	}
}

// TestHostReal resolves the template of this machine and runs its programs in
// a chroot of it, in a mount namespace of its own.
func TestHostReal(t *testing.T) {
	s := newStore(t, Options{})
	root := mustResolve(t, s)
	checkPlain(t, root.Path)
	n := 0
	for _, p := range list(t, root.Path) {
		if strings.HasPrefix(p, "etc/") {
			n++
		}
	}
	t.Logf("%d files of /etc", n)
	if os.Geteuid() != 0 {
		t.Skip("probe: not root, no mounts to run programs with")
	}
	mnt := t.TempDir()
	script := "set -e; mount --bind " + root.Path + " " + mnt + "\n"
	for _, b := range root.Binds {
		script += "mount --bind " + b.Source + " " + mnt + b.Target + "\n"
	}
	script += "chroot --userspec=1000:1000 " + mnt + " /bin/sh -c 'id; ls /usr/local; command -v python3 >/dev/null && python3 -c \"import ssl; print(1)\" || true'\n"
	out, err := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "uid=1000(user)") {
		t.Errorf("got %v:\n%s", err, out)
	}
}

func BenchmarkResolveHost(b *testing.B) {
	s := newStore(b, Options{})
	mustResolve(b, s)
	b.ReportAllocs()
	for b.Loop() {
		mustResolve(b, s)
	}
}

func BenchmarkPlanHost(b *testing.B) {
	for b.Loop() {
		if _, err := planHost(HostOptions{}, true); err != nil {
			b.Fatal(err)
		}
	}
}
