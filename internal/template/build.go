package template

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/sandbox"
)

// RecipeDebian names the recipe that [Store.Build] knows.
const RecipeDebian = "debian"

// debianPackages are what agents expect of a machine, beyond what Debian calls
// essential; git holds git-daemon.
var debianPackages = []string{
	"bash", "ca-certificates", "coreutils", "curl", "git", "iproute2", "ncurses-bin", "procps", "python-is-python3", "python3", "sudo",
}

// BuildOptions says how to build.
type BuildOptions struct {
	Name     string   // of the template; default: the recipe's
	Suite    string   // of Debian; default: the host's when it runs Debian, else "stable"
	Packages []string // more packages
	// Log, when set, is told each line that the build prints. Lines come from
	// package scripts: escape them before printing.
	Log func(line string)
	// Progress, when set, is told how far the unpacking of the result is.
	Progress func(archive.Progress)
}

// Build makes a template from a recipe: Debian with the packages that agents
// expect and a user "user" who may become root with sudo. It runs mmdebstrap, so
// package scripts run as root of a user namespace, with mount, process and IPC
// namespaces of their own and the host's network, for downloads. Packages come
// from where the host's own apt gets Debian's. Without mmdebstrap, or without
// the ids that an ordinary user needs, it is [sandbox.Unsupported].
func (s *Store) Build(ctx context.Context, recipe string, o BuildOptions) (*Details, error) {
	if recipe != RecipeDebian {
		return nil, sandbox.Errorf(sandbox.Invalid, "there is no such recipe").WithField("recipe", recipe).
			WithHint("the recipe that can be built is %s; others are imported: `belljar template import NAME PATH`", RecipeDebian)
	}
	if o.Name == "" {
		o.Name = recipe
	}
	if err := s.checkFree(o.Name); err != nil {
		return nil, err
	}
	b, err := newBuild(o)
	if err != nil {
		return nil, err
	}
	w, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer w.end()
	run, err := b.start(ctx, w)
	if err != nil {
		return nil, err
	}
	d, err := s.ImportStream(ctx, o.Name, run, ImportOptions{
		SkipDevices: true, Progress: o.Progress, kind: KindBuilt, packages: b.packages,
	})
	run.close()
	switch {
	case err == nil:
		return d, nil
	case ctx.Err() != nil:
		return nil, sandbox.Errorf(sandbox.Canceled, "canceled").WithCause(ctx.Err())
	case run.err != nil:
		return nil, run.err // the reason why the archive broke off
	}
	return nil, err
}

// build is one invocation of mmdebstrap.
type build struct {
	program  string
	suite    string
	sources  string // deb822; "" means mmdebstrap's own default
	aptopts  []string
	packages []string
	log      func(string)
	group    *group // of a program that runs in one of its own
}

func newBuild(o BuildOptions) (*build, error) {
	b := &build{log: o.Log, suite: o.Suite}
	if b.log == nil {
		b.log = func(string) {}
	}
	b.packages = append(slices.Clone(debianPackages), o.Packages...)
	slices.Sort(b.packages)
	b.packages = slices.Compact(b.packages)
	for _, p := range b.packages {
		if !isPackage(p) {
			return nil, sandbox.Errorf(sandbox.Invalid, "not a name of a Debian package").WithField("package", p)
		}
	}
	var err error
	if b.program, err = findProgram("mmdebstrap"); err != nil {
		return nil, sandbox.Errorf(sandbox.Unsupported, "mmdebstrap is not installed").WithField("recipe", RecipeDebian).
			WithHint("apt-get install mmdebstrap")
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		release = nil // some other system
	}
	codename := ""
	if osField(string(release), "ID") == "debian" {
		codename = osField(string(release), "VERSION_CODENAME")
	}
	if b.suite == "" {
		b.suite = codename
	}
	if b.suite == "" {
		b.suite = "stable"
	}
	if !isPackage(b.suite) {
		return nil, sandbox.Errorf(sandbox.Invalid, "not a name of a suite").WithField("suite", b.suite)
	}
	b.sources = hostSources("/etc/apt", b.suite)
	b.aptopts = hostAptOptions()
	return b, nil
}

// isPackage reports whether s is made like the names of packages and suites.
func isPackage(s string) bool {
	return len(s) > 1 && len(s) < 100 && s[0] != '-' && s[0] != '+' && s[0] != '.' &&
		!strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789+.-", r) })
}

// findProgram looks in the usual places too: a caller's PATH may lack them.
func findProgram(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return filepath.Abs(p)
	}
	for _, d := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}

// osField returns the value of a field of os-release.
func osField(text, key string) string {
	for line := range strings.SplitSeq(text, "\n") {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// args are mmdebstrap's; the archive goes to standard output, the sources come
// from standard input.
func (b *build) args(mode string) []string {
	a := []string{
		"--mode=" + mode, "--variant=minbase", "--format=tar", "--skip=chroot/mount/sys,output/dev",
		"--include=" + strings.Join(b.packages, ","),
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/info/*",
		"--customize-hook=" + customize,
	}
	for _, o := range b.aptopts {
		a = append(a, "--aptopt="+o)
	}
	a = append(a, b.suite, "-")
	if b.sources != "" {
		a = append(a, "-")
	}
	return a
}

// customize makes the user, and takes away what mmdebstrap copied from the
// host: its name servers, its name and its apt options.
const customize = `set -e
chroot "$1" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/hosts"
: > "$1/etc/resolv.conf"
echo sandbox > "$1/etc/hostname"
printf '127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n' > "$1/etc/hosts"
mkdir -p "$1/usr/share/man/man1"`

// running is a build on its way; it reads as the archive that it makes, and
// ends in an error if the build fails.
type running struct {
	out  io.ReadCloser
	done chan struct{} // closed when err is set
	err  error         // why the build failed; read it after close
	kill context.CancelFunc
}

func (r *running) Read(p []byte) (int, error) {
	n, err := r.out.Read(p)
	if err == nil {
		return n, nil
	}
	if r.close(); r.err != nil {
		return n, r.err
	}
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// close waits until the program has ended, after an early end of reading too.
func (r *running) close() {
	select {
	case <-r.done:
	default:
		r.out.Close() // what is still to be written fails
		<-r.done
	}
	r.kill()
}
